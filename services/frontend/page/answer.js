// The text of one answer: a span a token, marked by where the token came from. Text only, never markup: what the model
// says cannot become part of the page. Fenced code is set apart; every character stays, the fences too.

const FENCE = /^ {0,3}```/;
const MEANING = {
  learned: "drafted by the model's own drafter",
  history: "copied from earlier answers",
  prompt: "copied from this conversation",
};

export class AnswerText {
  #root;
  #block = null;
  #inCode = false;
  #line = [];

  constructor(root) {
    this.#root = root;
  }

  get text() {
    return this.#root.textContent;
  }

  /** Adds tokens `{text, source}`. */
  add(tokens) {
    for (const { text, source } of tokens) {
      for (const piece of text.match(/[^\n]*\n|[^\n]+$/g) ?? []) this.#place(piece, source);
    }
  }

  /** Nothing more comes: an unfinished last line is judged as it stands. */
  close() {
    if (this.#line.length) this.#endLine();
  }

  #place(piece, source) {
    const span = document.createElement("span");
    span.textContent = piece;
    if (source in MEANING) {
      span.className = `token ${source}`;
      span.title = MEANING[source];
    }
    this.#block ??= this.#open("p", "prose");
    this.#block.append(span);
    this.#line.push(span);
    if (piece.endsWith("\n")) this.#endLine();
  }

  #open(name, kind) {
    const block = document.createElement(name);
    block.className = kind;
    this.#root.append(block);
    return block;
  }

  #endLine() {
    const line = this.#line;
    this.#line = [];
    if (!FENCE.test(line.map((span) => span.textContent).join(""))) return;
    for (const span of line) span.classList.add("fence");
    if (this.#inCode) {
      this.#block = null; // what follows is prose again
    } else {
      const before = this.#block;
      this.#block = this.#open("pre", "code");
      this.#block.tabIndex = 0; // it may scroll sideways, by keyboard too
      this.#block.append(...line);
      if (!before.childNodes.length) before.remove();
    }
    this.#inCode = !this.#inCode;
  }
}
