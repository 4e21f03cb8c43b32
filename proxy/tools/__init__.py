"""The tools that the proxy runs for models. Each of them is a `tool.Tool`."""
