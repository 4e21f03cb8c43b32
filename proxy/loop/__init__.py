"""The tool loop: pure values and functions, and `driver` and `tool_calls`, which run them on the event loop."""
