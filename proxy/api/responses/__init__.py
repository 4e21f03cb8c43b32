"""The Responses API: a codec in front of the loop of Chat Completions."""
