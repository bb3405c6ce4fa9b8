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
  #who = element("h2", "who");
  #note = element("p", "note");
  #detail = element("details", "small detail");
  #footer = element("footer", "small");

  constructor(model) {
    const body = element("div", "body");
    this.name(model);
    this.root.append(this.#who, body, this.#note, this.#detail, this.#footer);
    this.#detail.hidden = true;
    this.root.setAttribute("aria-busy", "true");
    this.#note.hidden = true;
    this.text = new AnswerText(body);
  }

  /** Says who answers. */
  name(model) {
    this.#who.textContent = model || "Answer";
  }

  /** Says something beside the text: why nothing comes, or how it ended. An empty text takes it away. */
  note(text, fault = false) {
    this.#note.textContent = text;
    this.#note.hidden = !text;
    this.#note.classList.toggle("fault", fault);
    if (fault) this.#note.setAttribute("role", "alert");
  }

  get noted() {
    return this.#note.textContent;
  }

  /** Shows the server's own words, if there are any, to who wants to read them. */
  tell(detail) {
    this.#detail.hidden = !detail;
    this.#detail.replaceChildren(element("summary", "", "What the server said"), element("p", "", detail));
  }

  add(tokens) {
    this.root.classList.remove("waiting");
    this.text.add(tokens);
  }

  /** The answer is over. `offer` is what the reader may do next, `{ label, action }`, or null. */
  close(summary, offer) {
    this.root.classList.remove("waiting");
    this.root.removeAttribute("aria-busy");
    this.text.close();
    const shown = [];
    if (summary) shown.push(element("span", "summary", summary));
    if (navigator.clipboard && this.text.text) {
      shown.push(button("Copy", () => navigator.clipboard.writeText(this.text.text).catch(() => {})));
    }
    if (offer) {
      const next = button(offer.label, offer.action);
      next.classList.add("again");
      shown.push(next);
    }
    this.#footer.replaceChildren(...shown);
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

  /** Says of the last question that the model will not hear of it again. */
  forgetQuestion() {
    const last = [...this.#root.querySelectorAll(".question")].at(-1);
    last?.append(element("p", "small forgotten", "Not answered, not sent again"));
  }

  /** Says something about the conversation as a whole. */
  remark(text) {
    this.#root.append(element("p", "turn small remark", text));
  }

  clear() {
    for (const turn of this.#root.querySelectorAll(".turn")) turn.remove();
    this.#welcome.hidden = false;
  }
}
