// One conversation: what was said, the answer that is running, and how it ends. The server keeps nothing between
// requests, so every request carries the whole conversation.

import { summary } from "./insight.js";
import { ServerError } from "./server.js";
import { Tally } from "./tally.js";

const ENDINGS = { length: "It ended at the limit of tokens." };

/** The tokens of a chunk's choice; of an unknown source when the server does not tell. */
function tokensOf(choice) {
  if (choice.token_sources) return choice.token_sources;
  const text = choice.delta.content;
  return text ? [{ text, source: null }] : [];
}

export class Chat {
  #server;
  #transcript;
  #insight;
  #settings;
  #speech;
  #messages = [];
  #running = null;
  /** The served model's name, or null while unknown. */
  model = null;
  /** Called when an answer begins or ends. */
  onChange = () => {};
  /** Called when the server wants an API key. */
  onKeyWanted = () => {};

  constructor(server, transcript, insight, settings, speech) {
    this.#server = server;
    this.#transcript = transcript;
    this.#insight = insight;
    this.#settings = settings;
    this.#speech = speech;
  }

  get running() {
    return this.#running !== null;
  }

  /** Whether the last question has no answer. */
  get unanswered() {
    return this.#messages.at(-1)?.role === "user";
  }

  /** Asks, unless an answer is running, the text is empty or a control is wrong; tells whether it did. */
  ask(text) {
    if (this.running || !text.trim() || !this.#settings.check()) return false;
    if (this.unanswered) {
      this.#messages.pop(); // it was never answered, and two questions in a row are no conversation
      this.#transcript.forgetQuestion();
    }
    this.#messages.push({ role: "user", content: text });
    this.#transcript.question(text);
    this.#answer();
    return true;
  }

  /** Asks the last question anew. */
  again() {
    if (this.running || !this.#messages.length || !this.#settings.check()) return;
    if (!this.unanswered) this.#messages.pop();
    this.#answer();
  }

  /** Ends the running answer; its text stays. */
  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#running = null;
    this.#messages = [];
    this.#transcript.clear();
    this.#insight.clear(new Tally(performance.now()));
    this.#speech.say("The conversation was cleared.");
    this.onChange();
  }

  #order() {
    return {
      ...(this.model ? { model: this.model } : {}),
      ...this.#settings.fields,
      messages: [...this.#settings.system, ...this.#messages],
      stream: true,
      stream_options: { include_usage: true },
      return_token_sources: true,
    };
  }

  async #answer() {
    const control = new AbortController();
    const turn = this.#transcript.answer(this.model ?? "Answer");
    const tally = new Tally(performance.now());
    this.#running = control;
    this.#insight.clear(tally);
    this.#speech.begin(performance.now());
    this.onChange();
    let ending = "Something in this page failed.", fault = true, metrics;
    try {
      ({ ending, metrics } = await this.#read(control.signal, turn, tally));
      fault = false;
    } catch (error) {
      if (!control.signal.aborted && !(error instanceof ServerError)) throw error;
      fault = !control.signal.aborted;
      ending = fault ? error.message : "Stopped.";
      if (error.status === 401) this.onKeyWanted();
    } finally {
      if (this.#running === control) this.#finish(turn, tally, metrics, ending, fault);
    }
  }

  async #read(signal, turn, tally) {
    let reason = null, metrics;
    for await (const chunk of this.#server.chat(this.#order(), signal, (why) => this.#wait(turn, why))) {
      turn.note("");
      metrics = chunk.metrics ?? metrics;
      const choice = chunk.choices[0];
      if (!choice) continue;
      const tokens = tokensOf(choice);
      const now = performance.now();
      tally.add(tokens, now);
      if (tokens.length) turn.add(tokens);
      reason = choice.finish_reason ?? reason;
      this.#insight.show(tally);
      this.#speech.follow(turn.text.text, now);
      this.#transcript.follow();
    }
    return { ending: ENDINGS[reason] ?? "", metrics };
  }

  #wait(turn, why) {
    turn.note(why);
    this.#speech.say(why);
    this.#transcript.follow();
  }

  #finish(turn, tally, metrics, ending, fault) {
    this.#running = null;
    tally.over = true;
    const text = turn.text.text;
    if (text) this.#messages.push({ role: "assistant", content: text });
    turn.note(ending, fault);
    turn.close(summary(tally), fault ? "Try again" : "Regenerate", () => this.again());
    this.#insight.conclude(tally, metrics);
    this.#speech.end(text, fault ? "" : ending || "The answer is complete.");
    this.#transcript.follow();
    this.onChange();
  }
}
