"""Adapters to model servers: any Chat Completions endpoint, its quirks as data in a profile."""
