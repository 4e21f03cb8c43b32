"""Web search: providers as descriptions, and the tools that search with them."""
