// A client like any other: it asks /v1/chat/completions, streamed, with progress events that name the pages found.
// What comes from a model is only ever written as text, and a link is made of http and https addresses alone.
"use strict";
const at = (id) => document.getElementById(id);
let messages = [];
const examples = at("empty");
let asking = null; // the AbortController of the request that is open

at("key").value = sessionStorage.getItem("toolproxy-key") ?? "";

function headers() {
  const key = at("key").value.trim();
  return { "content-type": "application/json", "x-tool-events": "results", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function listModels() {
  const chosen = at("model").value;
  const answer = await fetch("/v1/models", { headers: headers() });
  const models = answer.ok ? (await answer.json()).data : [];
  at("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === chosen)));
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function link(url, title) {
  const made = element("a", "", title || url);
  if (/^https?:\/\//.test(url)) {
    made.href = url;
    made.target = "_blank";
    made.rel = "noopener noreferrer";
  }
  return made;
}

function foundList(results) {
  const list = element("details", "found");
  list.append(element("summary", "", `${results.length} found`));
  for (const { url, title } of results) list.append(link(url, title));
  return list;
}

function hostOf(url) {
  try {
    return new URL(url).host;
  } catch {
    return "";
  }
}

function queryOf(event) {
  try {
    return JSON.parse(event.arguments).query ?? "";
  } catch {
    return "";
  }
}

// One answer on the page: thoughts, steps, text, sources.
class Answer {
  constructor() {
    this.text = "";
    this.box = element("div", "turn");
    this.steps = element("ul", "steps");
    this.words = element("div", "answer");
    this.calls = new Map();
    this.titles = new Map(); // of the pages found, by URL
    this.cited = new Set();
    this.box.append(this.steps, this.words);
    at("talk").append(this.box);
  }

  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.tool_event) this.step(chunk.tool_event);
    const delta = chunk.choices?.[0]?.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) this.think(thought);
    if (delta.content) this.words.textContent = this.text += delta.content;
    if (delta.annotations) this.cite(delta.annotations);
    at("talk").scrollTop = at("talk").scrollHeight;
  }

  think(text) {
    if (!this.thoughts) {
      this.thoughts = element("details");
      this.thoughts.append(element("summary", "", "thoughts"), document.createTextNode(""));
      this.box.prepend(this.thoughts);
    }
    this.thoughts.lastChild.data += text;
  }

  step(event) {
    if (event.type === "turn.started") return;
    const line = this.calls.get(event.call_id) ?? this.steps.appendChild(element("li"));
    this.calls.set(event.call_id, line);
    const query = queryOf(event);
    line.textContent = query ? `${event.tool}: ${query}` : event.tool;
    if (event.type === "tool.started") line.append(" …");
    if (event.type === "tool.failed") line.append(element("span", "bad", " failed"));
    for (const { url, title } of event.results ?? []) this.titles.set(url, title);
    if (event.results?.length) line.append(foundList(event.results));
  }

  cite(annotations) {
    this.sources ??= this.box.appendChild(element("ul", "sources"));
    for (const { url_citation: cited } of annotations) {
      if (!cited || this.cited.has(cited.url)) continue;
      this.cited.add(cited.url);
      const card = link(cited.url, cited.title || this.titles.get(cited.url));
      card.append(element("span", "", hostOf(cited.url)));
      this.sources.appendChild(element("li")).append(card);
    }
  }

  finish(requestId) {
    const about = element("div", "about");
    if (navigator.clipboard) about.append(this.copyButton());
    const trace = element("a", "", "trace");
    trace.href = `/debug/requests/${encodeURIComponent(requestId)}`;
    about.append(trace);
    this.box.append(about);
    at("talk").scrollTop = at("talk").scrollHeight;
  }

  copyButton() {
    const button = element("button", "", "Copy");
    button.type = "button";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    return button;
  }

  fail(message) {
    this.box.append(element("div", "bad", message));
  }
}

async function ask(question) {
  examples.remove();
  at("talk").append(element("div", "mine", question));
  messages.push({ role: "user", content: question });
  const answer = new Answer();
  asking = new AbortController();
  at("send").textContent = "Stop";
  try {
    const body = JSON.stringify({ model: at("model").value, messages, stream: true });
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal: asking.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    await read(response.body, answer);
    messages.push({ role: "assistant", content: answer.text });
    answer.finish(response.headers.get("x-request-id"));
  } catch (fault) {
    if (fault.name !== "AbortError") messages.pop();
    else messages.push({ role: "assistant", content: answer.text || "(stopped)" });
    answer.fail(fault.name === "AbortError" ? "stopped" : fault.message);
  } finally {
    asking = null;
    at("send").textContent = "Send";
  }
}

async function read(stream, answer) {
  let rest = "";
  for (const reader = stream.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: {")) answer.take(JSON.parse(event.slice(6)));
    }
  }
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (asking) {
    asking.abort();
    return;
  }
  const question = at("question").value.trim();
  if (question) {
    at("question").value = "";
    ask(question);
  }
});
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!asking) at("form").requestSubmit(); // while an answer is written, Enter must not end it
  }
  if (event.key === "Escape") asking?.abort();
});
at("key").addEventListener("change", () => {
  sessionStorage.setItem("toolproxy-key", at("key").value.trim());
  listModels();
});
at("new").addEventListener("click", () => {
  asking?.abort();
  messages = [];
  at("talk").replaceChildren(examples);
  at("question").focus();
});
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => {
    ask(example.textContent);
    at("question").focus(); // the button that had the focus is gone
  });
}
listModels();
at("question").focus();
