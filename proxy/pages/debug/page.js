// The debug pages work without this script; with it they stay up to date, copy ids and obey the keyboard.
"use strict";
const PERIOD = 2000; // milliseconds between two looks at a live page
const main = document.querySelector("main");
const pause = document.getElementById("pause");
const isLive = main.hasAttribute("data-live");
let paused = false;
let known = null; // the ETag of what is shown

async function refresh() {
  if (paused || document.hidden || document.querySelector("select:focus")) return;
  let answer;
  try {
    answer = await fetch(location.href, { headers: known ? { "if-none-match": known } : {}, cache: "no-store" });
  } catch {
    return; // the proxy restarts; the next look will tell
  }
  if (answer.status !== 200) return;
  known = answer.headers.get("etag");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("live");
  if (!fresh) return;
  const chosen = document.querySelector(".chosen a")?.href;
  const opened = [...document.querySelectorAll("#live details")].map((one) => one.open);
  document.getElementById("live").replaceWith(document.adoptNode(fresh));
  document.querySelectorAll("#live details").forEach((one, number) => { one.open = opened[number] ?? false; });
  if (chosen) choose(rows().find((row) => row.querySelector("a").href === chosen));
}

function setPaused(value) {
  paused = value;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "paused" : "live";
}

function rows() {
  return [...document.querySelectorAll(".requests tbody tr")];
}

function choose(row) {
  document.querySelector(".chosen")?.classList.remove("chosen");
  row?.classList.add("chosen");
}

function move(step) {
  const all = rows();
  const at = all.findIndex((row) => row.classList.contains("chosen"));
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  choose(next);
  next?.querySelector("a").focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => document.querySelector(".filter select")?.focus(),
  p: () => pause && setPaused(!paused),
  "?": () => document.getElementById("keys")?.scrollIntoView({ block: "center" }),
  u: () => document.getElementById("back")?.click(),
  Escape: () => document.getElementById("back")?.click(),
  e: () => {
    const steps = [...document.querySelectorAll(".waterfall details")];
    const open = steps.some((step) => !step.open);
    steps.forEach((step) => { step.open = open; });
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("select, input, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch {
    button.textContent = "not allowed"; // over plain HTTP browsers give pages of other machines no clipboard
  }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});

document.querySelector(".filter")?.addEventListener("change", (event) => event.currentTarget.requestSubmit());
if (pause) {
  pause.hidden = false;
  pause.addEventListener("click", () => setPaused(!paused));
}
if (isLive) setInterval(refresh, PERIOD);
