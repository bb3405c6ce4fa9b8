// What a screen reader is told of an answer while it streams: whole sentences now and then, never single tokens.

const EVERY_MS = 2500;
const SENTENCE_END = /[\s\S]*[.!?:;\n](?=\s|$)/;

export class Speech {
  #region;
  #heard = 0;
  #next = 0;

  constructor(region) {
    this.#region = region;
  }

  /** Says something at once. */
  say(text) {
    this.#region.textContent = text;
  }

  /** A new answer begins. */
  begin(now) {
    this.#heard = 0;
    this.#next = now + EVERY_MS;
    this.say("Answering.");
  }

  /** Hears of the answer's `text` so far; says complete sentences when it is time. */
  follow(text, now) {
    if (now < this.#next) return;
    const ready = text.slice(this.#heard).match(SENTENCE_END)?.[0];
    if (!ready) return;
    this.#next = now + EVERY_MS;
    this.#heard += ready.length;
    this.say(ready);
  }

  /** Says the rest, and how it ended. */
  end(text, ending) {
    this.say(`${text.slice(this.#heard)} ${ending}`);
  }
}
