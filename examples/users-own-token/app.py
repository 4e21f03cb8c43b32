"""Two users of one app, on the Messages API. Each reads only their own notes. `pip install anthropic`."""

import os

from anthropic import Anthropic

client = Anthropic(base_url=os.environ["PROXY_URL"], api_key="unused")
for user in ("ann", "bob"):
    message = client.messages.create(
        model="glm-4.7",
        max_tokens=1000,
        messages=[{"role": "user", "content": "What is my latest note?"}],
        extra_headers={"x-notes-token": f"token-of-{user}", "x-tool-events": "true"},  # calls of server tools are shown
    )
    for block in message.content:
        if block.type == "mcp_tool_result":
            print(f"{user}: {block.content}")
