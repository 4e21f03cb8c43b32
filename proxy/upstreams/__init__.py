"""Adapters for model servers: any Chat Completions endpoint, with its quirks as data in a profile."""
