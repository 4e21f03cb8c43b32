"""Chat Completions: OpenAI's oldest API, in whose words the proxy speaks to upstreams."""
