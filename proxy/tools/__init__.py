"""The tools that the proxy runs for a model. Each registers through the same door: `registry.Tool`."""
