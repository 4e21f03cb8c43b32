"""What outlives a request: continuations."""
