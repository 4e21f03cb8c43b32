"""Tools that call an HTTP API which the configuration describes."""
