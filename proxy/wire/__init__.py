"""The words that every room uses: messages, errors, JSON, server-sent events, counts. It imports nothing of ours."""
