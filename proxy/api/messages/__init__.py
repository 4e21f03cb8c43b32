"""The Messages API: the tool loop for clients that speak to Anthropic."""
