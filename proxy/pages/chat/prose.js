// Markdown as elements. They are made of markdown-it's tokens, one by one, and never of HTML, so that nothing in an answer
// becomes a tag. Tags in Markdown are text (`html: false`), and a picture is a link, so no other server learns of the reader.
"use strict";
const markdown = markdownit({ html: false, linkify: true, breaks: true });

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function link(url, title) {
  const made = element("a", "", title);
  if (/^(https?:\/\/|mailto:)/i.test(url)) {
    made.href = url;
    made.target = "_blank";
    made.rel = "noopener noreferrer";
  }
  return made;
}

function copyButton(textOf, what) {
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", `Copy ${what}`);
  button.hidden = !navigator.clipboard; // there is none on a page without TLS, but for loopback
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(textOf());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function codeBlock(text, language) {
  const box = element("div", "code");
  const bar = element("div", "bar");
  bar.append(element("span", "", language), copyButton(() => text, "the code"));
  const code = element("pre");
  code.tabIndex = 0; // it scrolls sideways
  code.append(element("code", "", text));
  box.append(bar, code);
  return box;
}

function leaf(token) {
  switch (token.type) {
    case "fence":
    case "code_block":
      return codeBlock(token.content, token.info.trim().split(/\s/)[0]);
    case "code_inline":
      return element("code", "", token.content);
    case "hr":
      return element("hr");
    case "softbreak":
    case "hardbreak":
      return element("br");
    case "image":
      return link(token.attrGet("src"), token.content || token.attrGet("src"));
    default:
      return document.createTextNode(token.content);
  }
}

function opened(token) {
  if (token.type === "link_open") return link(token.attrGet("href"));
  if (token.type === "table_open") {
    const scrolled = element("div", "table");
    scrolled.tabIndex = 0;
    scrolled.append(element("table"));
    return scrolled;
  }
  const made = element(token.tag);
  if (token.type === "ordered_list_open" && token.attrGet("start")) made.start = token.attrGet("start");
  const align = /^text-align:(\w+)$/.exec(token.attrGet("style") ?? "");
  if (align) made.style.textAlign = align[1];
  return made;
}

// Append what tokens stand for.
function build(tokens, into) {
  const open = [into];
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a list without blank lines
    if (token.type === "inline") build(token.children, open.at(-1));
    else if (token.nesting === 0) open.at(-1).append(leaf(token));
    else if (token.nesting < 0) open.pop();
    else {
      const made = opened(token);
      open.at(-1).append(made);
      open.push(token.type === "table_open" ? made.firstChild : made);
    }
  }
}

// The blocks of a text: where each begins, its source and its tokens. The page has its own h1: headings of an answer begin
// below it, and none leaves out a level, because people who listen go from level to level. `level`: that of the last heading.
function blocksOf(text, level) {
  const lines = text.split("\n");
  const blocks = [];
  for (const token of markdown.parse(text, {})) {
    if (token.level === 0 && token.nesting >= 0 && token.type !== "inline") {
      const [first, end] = token.map;
      const at = lines.slice(0, first).reduce((sum, line) => sum + line.length + 1, 0);
      blocks.push({ at, level, source: lines.slice(first, end).join("\n"), tokens: [] });
    }
    if (token.type === "heading_open") level = Math.min(6, level + 1, Number(token.tag[1]) + 1);
    if (token.type === "heading_open") token.tag = `h${level}`;
    blocks.at(-1).tokens.push(token);
  }
  return blocks;
}

// A text that grows. Only its last two blocks can still change, so that only these are read again: the time does not grow
// with the text, and what is selected or read aloud above them stays.
class Prose {
  constructor(box) {
    this.box = box;
    this.settled = 0; // characters that are not read again
    this.nodes = 0; // elements of these
    this.level = 1;
    this.sources = []; // of the blocks behind these
  }

  show(text) {
    const blocks = blocksOf(text.slice(this.settled), this.level);
    let kept = 0;
    while (kept < blocks.length && blocks[kept].source === this.sources[kept]) kept++;
    while (this.box.childNodes.length > this.nodes + kept) this.box.lastChild.remove();
    for (const { tokens } of blocks.slice(kept)) build(tokens, this.box);
    const open = blocks.slice(-2);
    this.nodes += blocks.length - open.length;
    this.settled += open[0]?.at ?? 0;
    this.level = open[0]?.level ?? this.level;
    this.sources = open.map(({ source }) => source);
  }
}
