"""Web search: one module for each provider."""
