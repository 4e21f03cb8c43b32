"""The tool loop: pure values and functions, which `execution` runs on the event loop."""
