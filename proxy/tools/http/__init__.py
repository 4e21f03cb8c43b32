"""Tools that call an HTTP API, as described in the configuration."""
