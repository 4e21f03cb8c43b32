"""Tools that are Python functions."""
