"""What outlives a request: continuations, quotas, and results of tools."""
