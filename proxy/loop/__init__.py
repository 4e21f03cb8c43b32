"""The tool loop as pure values and functions: no network, no clock, no event loop, no logging."""
