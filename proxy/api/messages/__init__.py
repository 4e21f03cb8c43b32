"""The Messages API: the tool loop for clients of Anthropic's API."""
