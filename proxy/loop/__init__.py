"""The protocol of a run: pure values and functions, which `execution` runs on the event loop."""
