"""The Responses API: a codec at the edge. The loop behind it is that of Chat Completions."""
