"""The tools that the proxy runs for a model. Each of them is a `tool.Tool`."""
