"""The tool loop: pure values and functions, with `driver` and `call_runner`, which run them on the event loop."""
