// The text of one answer: spans of tokens, marked by where each token came from. Text only, never markup: what the model
// says cannot become part of the page. Fenced code is set apart; signs of Markdown stay in the text and are not shown.

import { beginsCode, endsCode, layOut, mayMatter } from "./markup.js";

const MEANING = {
  learned: "drafted by the model's own drafter",
  history: "copied from earlier answers",
  prompt: "copied from this conversation",
};
const BEGINNING = 16; // so early in a line any token may change what the line is
const LONGEST = 2000; // a longer line stays as it is, or laying it out again and again would take too long

function made(name, kind) {
  const element = document.createElement(name);
  element.className = kind;
  return element;
}

function span(text, source, kind = "") {
  const one = made("span", kind.trim());
  one.textContent = text;
  if (source in MEANING) {
    one.classList.add("token", source);
    one.title = MEANING[source];
  }
  return one;
}

export class AnswerText {
  #root;
  #block = null;
  #inCode = false;
  #row = null;
  #line = "";
  #parts = [];
  /** The answer as the model wrote it. */
  text = "";
  /** The same as `[text, source]`; neighbours of one source are one. */
  pieces = [];

  constructor(root) {
    this.#root = root;
  }

  /** Adds tokens `{text, source}`. */
  add(tokens) {
    for (const { text, source } of tokens) {
      this.text += text;
      if (this.pieces.length && this.pieces.at(-1)[1] === source) this.pieces.at(-1)[0] += text;
      else this.pieces.push([text, source]);
      for (const part of text.match(/[^\n]*\n|[^\n]+$/g) ?? []) this.#place(part, source);
    }
  }

  /** Nothing more comes: an unfinished last line is judged as it stands. */
  close() {
    if (this.#row) this.#endLine();
  }

  #place(text, source) {
    this.#block ??= this.#open("div", "prose");
    if (!this.#row) {
      this.#row = made(this.#inCode ? "span" : "div", "line");
      this.#block.append(this.#row);
    }
    this.#line += text;
    this.#parts.push([text, source]);
    if (text.endsWith("\n")) this.#endLine();
    else if (mayMatter(text) || this.#line.length < BEGINNING) this.#layOut();
    else this.#row.append(span(text, source));
  }

  #open(name, kind) {
    const block = made(name, kind);
    this.#root.append(block);
    return block;
  }

  /** Builds the newest line anew, as it looks by now. */
  #layOut() {
    const long = this.#line.length > LONGEST;
    const plain = { kind: endsCode(this.#line) ? "fence" : "plain", runs: [[this.#line.length, ""]] };
    const { kind, runs } = this.#inCode || long ? plain : layOut(this.#line);
    this.#row.className = `line ${kind}`;
    if (kind === "heading") this.#row.setAttribute("role", "heading");
    else this.#row.removeAttribute("role");
    this.#row.ariaLevel = kind === "heading" ? "3" : null;
    const spans = [];
    let run = 0, left = runs[0][0];
    for (const [text, source] of this.#parts) {
      for (let at = 0; at < text.length; ) {
        const length = Math.min(left, text.length - at);
        spans.push(span(text.slice(at, at + length), source, runs[run][1]));
        at += length;
        left -= length;
        if (!left && run + 1 < runs.length) left = runs[++run][0];
      }
    }
    this.#row.replaceChildren(...spans);
  }

  #endLine() {
    this.#layOut();
    const language = beginsCode(this.#line);
    if (this.#inCode && endsCode(this.#line)) {
      this.#inCode = false;
      this.#block = null; // what follows is prose again
    } else if (!this.#inCode && language !== null) {
      this.#openCode(language);
    }
    this.#row = null;
    this.#line = "";
    this.#parts = [];
  }

  #openCode(language) {
    const before = this.#block;
    const fence = made("span", "line fence");
    fence.append(...this.#row.childNodes);
    this.#row.remove();
    this.#block = this.#open("pre", "code");
    this.#block.tabIndex = 0; // it may scroll sideways, by keyboard too
    if (language) this.#block.dataset.language = language;
    this.#block.append(fence);
    if (!before.childNodes.length) before.remove();
    this.#inCode = true;
  }
}
