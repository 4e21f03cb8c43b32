"""The execution of a run: carries out what `loop` decides, on the event loop, through the ports."""
