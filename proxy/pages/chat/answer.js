// One question and its answer on the page. A turn is plain data, so that the browser can keep it over a reload:
// { question, model, parts, sources, state: "open" | "done" | "stopped" | "failed", fault, requestId, seconds }, with parts in
// the order in which they happened: { kind: "text" | "thoughts", text, seconds } or { kind: "steps", calls }.
"use strict";

function queryOf(call) {
  try {
    const { query, queries, url } = JSON.parse(call.arguments);
    return { query: [query, ...(queries ?? [])].filter(Boolean).join(", "), url };
  } catch {
    return {};
  }
}

// What a call does, in words: while it runs, and afterwards.
function wordsFor(call) {
  const { query, url } = queryOf(call);
  const isOpen = call.state === "tool.started";
  if (query) return `${isOpen ? "Searching" : "Searched"} for “${query}”`;
  if (url) return `${isOpen ? "Opening" : "Opened"} ${url}`;
  return `${isOpen ? "Running" : "Ran"} ${call.tool}`;
}

function hostOf(url) {
  try {
    return new URL(url).host;
  } catch {
    return "";
  }
}

class Answer {
  constructor(turn, talk, debug) {
    this.turn = turn;
    this.talk = talk;
    this.debug = debug; // whether there are pages of requests to link to
    this.shown = new Map(); // of each part: what shows it
    this.box = element("div", "turn");
    this.main = element("div", "parts");
    this.box.append(element("div", "mine", turn.question), this.main);
    talk.append(this.box);
    for (const part of turn.parts) this.show(part);
    if (turn.sources.length) this.showSources();
    if (turn.state === "open") this.wait("Waiting for the model");
    else this.conclude();
  }

  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.tool_event) this.hear(chunk.tool_event);
    const delta = chunk.choices?.[0]?.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) this.append("thoughts", thought, "Thinking");
    if (delta.content) this.append("text", delta.content, "Writing");
    if (delta.annotations) this.cite(delta.annotations);
  }

  append(kind, text, doing) {
    let part = this.turn.parts.at(-1);
    if (part?.kind !== kind) {
      this.turn.parts.push((part = { kind, text: "" }));
      this.began = performance.now();
    }
    part.text += text;
    if (kind === "thoughts") part.seconds = Math.round((performance.now() - this.began) / 1000);
    this.wait(doing);
    this.later(part);
  }

  hear(event) {
    if (event.type === "turn.started") return this.wait("Waiting for the model");
    let part = this.turn.parts.find(({ calls }) => calls?.some(({ id }) => id === event.call_id));
    if (!part) {
      part = this.turn.parts.at(-1);
      if (part?.kind !== "steps") this.turn.parts.push((part = { kind: "steps", calls: [] }));
      part.calls.push({ id: event.call_id });
    }
    const call = part.calls.find(({ id }) => id === event.call_id);
    Object.assign(call, { tool: event.tool, arguments: event.arguments, state: event.type, results: event.results ?? [] });
    const open = part.calls.filter(({ state }) => state === "tool.started");
    this.wait(open.length ? (queryOf(open[0]).query ? "Searching" : "Using tools") : "Waiting for the model");
    this.later(part);
  }

  cite(annotations) {
    const results = this.turn.parts.flatMap(({ calls }) => calls ?? []).flatMap((call) => call.results);
    for (const { url_citation: cited } of annotations) {
      if (!cited || this.turn.sources.some(({ url }) => url === cited.url)) continue;
      const title = cited.title || results.find(({ url }) => url === cited.url)?.title || cited.url;
      this.turn.sources.push({ url: cited.url, title });
    }
    this.showSources();
  }

  // A part is drawn once per frame, however many chunks arrive until then.
  later(part) {
    this.changed ??= new Set();
    if (!this.changed.size) requestAnimationFrame(() => this.draw());
    this.changed.add(part);
  }

  draw() {
    const follows = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < 80;
    for (const part of this.changed ?? []) this.show(part);
    this.changed?.clear();
    if (follows) this.talk.scrollTop = this.talk.scrollHeight;
  }

  show(part) {
    if (part.kind === "text") this.place(part, "div", "answer", (box) => new Prose(box)).show(part.text);
    else if (part.kind === "thoughts") this.showThoughts(part);
    else this.place(part, "ul", "steps", (list) => list).replaceChildren(...part.calls.map((call) => this.lineOf(call)));
  }

  place(part, name, className, make) {
    if (!this.shown.has(part)) this.shown.set(part, make(this.main.appendChild(element(name, className))));
    return this.shown.get(part);
  }

  showThoughts(part) {
    const box = this.place(part, "details", "thoughts", (details) => {
      details.append(element("summary"), element("div", "quiet"));
      return details;
    });
    box.firstChild.textContent = part.seconds ? `Thoughts · ${part.seconds} s` : "Thoughts";
    box.lastChild.textContent = part.text;
  }

  lineOf(call) {
    const line = element("li", "", wordsFor(call));
    if (call.state === "tool.started") line.append(" …");
    if (call.state === "tool.failed") line.append(element("span", "bad", " failed"));
    if (call.results.length) {
      const list = element("details", "found");
      list.append(element("summary", "", `${call.results.length} found`));
      for (const { url, title } of call.results) list.append(link(url, title || url));
      line.append(list);
    }
    return line;
  }

  showSources() {
    this.sources ??= element("ul", "sources");
    this.sources.replaceChildren(...this.turn.sources.map(({ url, title }) => {
      const card = link(url, title);
      card.append(element("span", "", hostOf(url)));
      const entry = element("li");
      entry.append(card);
      return entry;
    }));
    this.main.after(this.sources);
  }

  // Say what is being waited for, with the seconds since that began. The line moves, and is not read aloud.
  wait(doing) {
    if (!this.now) {
      this.now = element("div", "now");
      this.now.setAttribute("aria-hidden", "true");
      this.box.append(this.now);
      this.main.setAttribute("aria-busy", "true");
      this.clock = setInterval(() => this.tick(), 250);
    }
    if (doing === this.doing) return;
    this.doing = doing;
    this.since = performance.now();
    this.now.replaceChildren(element("span", "dots"), element("span", "", doing), element("span", "seconds"));
    this.talk.scrollTop = this.talk.scrollHeight;
  }

  tick() {
    const seconds = Math.floor((performance.now() - this.since) / 1000);
    if (seconds) this.now.lastChild.textContent = `${seconds} s`;
  }

  // The end of a turn: what became of it, and what can be done now.
  conclude() {
    clearInterval(this.clock);
    this.now?.remove();
    this.main.removeAttribute("aria-busy");
    this.draw();
    const { turn } = this;
    if (turn.state === "failed") this.box.append(element("div", "bad", turn.fault));
    const about = element("div", "about");
    if (turn.state === "stopped") about.append(element("span", "", "stopped"));
    if (this.text()) about.append(copyButton(() => this.text(), "the answer"));
    if (turn.state !== "done") about.append(this.retryButton());
    if (turn.requestId) about.append(this.trace());
    about.append(element("span", "", [turn.model, turn.seconds && `${turn.seconds} s`].filter(Boolean).join(" · ")));
    this.box.append(about);
    this.talk.scrollTop = this.talk.scrollHeight;
  }

  retryButton() {
    const button = element("button", "", "Try again");
    button.type = "button";
    button.addEventListener("click", () => this.box.dispatchEvent(new CustomEvent("retry", { detail: this, bubbles: true })));
    return button;
  }

  trace() {
    if (!this.debug) return element("code", "", `request ${this.turn.requestId}`);
    const trace = element("a", "", "trace");
    trace.href = `/debug/requests/${encodeURIComponent(this.turn.requestId)}`;
    return trace;
  }

  text() {
    return this.turn.parts.filter(({ kind }) => kind === "text").map(({ text }) => text.trim()).join("\n\n");
  }
}
