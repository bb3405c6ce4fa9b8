// The conversation on the page: questions, answers with their footers, and what went wrong under them.

import { AnswerText } from "./answer.js";

function element(name, kind, text = "") {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  return made;
}

function button(label, action) {
  const made = element("button", "quiet", label);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

/** One answer and its footer. */
class AnswerTurn {
  root = element("article", "turn answer waiting");
  #note = element("p", "note");
  #footer = element("footer", "small");

  constructor(model) {
    const body = element("div", "body");
    this.root.append(element("h2", "who", model), body, this.#note, this.#footer);
    this.root.setAttribute("aria-busy", "true");
    this.#note.hidden = true;
    this.text = new AnswerText(body);
  }

  /** Says something beside the text: why nothing comes, or how it ended. An empty text takes it away. */
  note(text, fault = false) {
    this.#note.textContent = text;
    this.#note.hidden = !text;
    this.#note.classList.toggle("fault", fault);
    if (fault) this.#note.setAttribute("role", "alert");
  }

  add(tokens) {
    this.root.classList.remove("waiting");
    this.text.add(tokens);
  }

  /** The answer is over. `again` asks anew. */
  close(summary, againLabel, again) {
    this.root.classList.remove("waiting");
    this.root.removeAttribute("aria-busy");
    this.text.close();
    const copy = button("Copy", () => navigator.clipboard.writeText(this.text.text).catch(() => {}));
    copy.hidden = !navigator.clipboard || !this.text.text;
    const anew = button(againLabel, again);
    anew.classList.add("again");
    this.#footer.replaceChildren(element("span", "summary", summary), copy, anew);
  }
}

export class Transcript {
  #root;
  #welcome;
  #follows = true;

  constructor(root, welcome) {
    this.#root = root;
    this.#welcome = welcome;
    root.addEventListener("scroll", () => {
      this.#follows = root.scrollHeight - root.scrollTop - root.clientHeight < 48;
    });
  }

  question(text) {
    this.#welcome.hidden = true;
    const turn = element("article", "turn question");
    turn.append(element("h2", "who", "You"), element("p", "body", text));
    this.#root.append(turn);
    this.#follows = true;
    this.follow();
  }

  answer(model) {
    const turn = new AnswerTurn(model);
    for (const old of this.#root.querySelectorAll(".again")) old.remove(); // only the last answer can be asked again
    this.#root.append(turn.root);
    this.#follows = true;
    this.follow();
    return turn;
  }

  /** Keeps the newest text in sight, unless the reader has scrolled away. */
  follow() {
    if (this.#follows) this.#root.scrollTop = this.#root.scrollHeight;
  }

  /** Marks the last question as one that the model will not hear of again. */
  forgetQuestion() {
    [...this.#root.querySelectorAll(".question")].at(-1)?.classList.add("forgotten");
  }

  clear() {
    for (const turn of this.#root.querySelectorAll(".turn")) turn.remove();
    this.#welcome.hidden = false;
  }
}
