"""The execution of a run: what `loop` decides is done here, on the event loop, through the ports."""
