"""Asks a question and prints the sources of the answer. `pip install openai`."""

from openai import OpenAI

question = [{"role": "user", "content": "Who invented the bicycle?"}]
message = OpenAI().chat.completions.create(model="glm-4.7", messages=question).choices[0].message
print(message.content)
for annotation in message.annotations or ():
    print(annotation.url_citation.url)
