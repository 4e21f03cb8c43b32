"""The commands of `toolproxy`: their arguments, and what they print."""
