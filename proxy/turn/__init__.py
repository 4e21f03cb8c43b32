"""The assembly of one turn: an upstream's chunks become a message with its texts and calls, and what may be shown."""
