// A client like any other: it asks /v1/chat/completions, streamed, with progress events that name the pages found.
// The conversation is kept by this browser, for this tab: it survives a reload, and "New chat" forgets it.
"use strict";
const KEPT = "toolproxy-chat";
const KEY = "toolproxy-key";
const at = (id) => document.getElementById(id);
const hasDebug = at("talk").dataset.debug !== undefined;
const examples = at("empty");
let turns = [];
let asking = null; // the AbortController of the request that is open

function headers() {
  const key = at("key")?.value.trim();
  return { "content-type": "application/json", "x-tool-events": "results", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function faultOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The answer is HTTP ${response.status} and not JSON.`;
  }
}

async function listModels() {
  const chosen = at("model").value;
  const answer = await fetch("/v1/models", { headers: headers() });
  const models = answer.ok ? (await answer.json()).data : [];
  at("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === chosen)));
  const isRefused = !answer.ok && (at("key") === null || at("key").value);
  at("refused").textContent = isRefused ? await faultOf(answer) : "";
}

function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(turns));
  } catch {
    // Without room, or where the browser keeps nothing: a reload then begins a new chat.
  }
}

function restore() {
  try {
    turns = JSON.parse(sessionStorage.getItem(KEPT)) ?? [];
    for (const turn of turns) {
      if (turn.state === "open") turn.state = "stopped"; // the reload has ended its request
      new Answer(turn, at("talk"), hasDebug);
    }
  } catch {
    turns = [];
  }
  if (turns.length) examples.remove();
}

function wordsOf(turn) {
  return turn.parts.filter(({ kind }) => kind === "text").map(({ text }) => text).join("\n\n");
}

// What the model is sent: the turns that were answered, or stopped by their reader. A turn that failed is left out.
function messages() {
  return turns.filter(({ state }) => state !== "failed").flatMap((turn) => {
    const asked = { role: "user", content: turn.question };
    return turn.state === "open" ? [asked] : [asked, { role: "assistant", content: wordsOf(turn) || "(stopped)" }];
  });
}

async function ask(question) {
  examples.remove();
  const model = at("model").value;
  const turn = { question, model, parts: [], sources: [], state: "open", fault: "", requestId: "", seconds: 0 };
  turns.push(turn);
  const answer = new Answer(turn, at("talk"), hasDebug);
  const began = performance.now();
  const controller = (asking = new AbortController());
  at("send").textContent = "Stop";
  keep();
  try {
    const body = JSON.stringify({ model, messages: messages(), stream: true });
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal: controller.signal });
    turn.requestId = response.headers.get("x-request-id") ?? "";
    if (!response.ok) throw new Error(await faultOf(response));
    await read(response.body, answer);
    turn.state = "done";
  } catch (fault) {
    turn.state = controller.signal.aborted ? "stopped" : "failed";
    turn.fault = fault instanceof TypeError ? "The proxy cannot be reached, or the connection broke." : fault.message;
  }
  turn.seconds = Number(((performance.now() - began) / 1000).toFixed(1));
  answer.conclude();
  if (asking === controller) {
    asking = null;
    at("send").textContent = "Send";
    keep();
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
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") asking?.abort();
});
at("talk").addEventListener("retry", ({ detail: answer }) => {
  if (asking) return;
  turns = turns.filter((turn) => turn !== answer.turn);
  answer.box.remove();
  ask(answer.turn.question);
  at("question").focus(); // the button that had the focus is gone
});
at("key")?.addEventListener("change", () => {
  sessionStorage.setItem(KEY, at("key").value.trim());
  listModels();
});
at("new").addEventListener("click", () => {
  asking?.abort();
  asking = null;
  at("send").textContent = "Send";
  turns = [];
  keep();
  at("talk").replaceChildren(examples);
  at("question").focus();
});
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => {
    ask(example.textContent);
    at("question").focus(); // the button that had the focus is gone
  });
}
if (at("key")) at("key").value = sessionStorage.getItem(KEY) ?? "";
addEventListener("pagehide", keep);
restore();
listModels();
at("question").focus();
