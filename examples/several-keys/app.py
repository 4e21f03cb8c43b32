"""Shows which key answered nine conversations of three turns each, from the proxy's metrics. `pip install openai`."""

import os
import re
import urllib.request

from openai import OpenAI

client = OpenAI()
for number in range(9):
    messages = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"Conversation {number}, question {turn}"})
        answer = client.chat.completions.create(
            model="glm-4.7", messages=messages, extra_headers={"x-session-id": f"conversation-{number}"}
        )
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
metrics = urllib.request.urlopen(f"{os.environ['PROXY_URL']}/metrics").read().decode()
for key, count in re.findall(r'toolproxy_upstream_key_requests_total\{key="(\d+)",.*?\} (\d+)', metrics):
    print(f"key {key}: {count} requests, {int(count) // 3} conversations")
