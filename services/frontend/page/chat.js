// One conversation: what was said, the answer that is running, and how it ends. The server keeps nothing between
// requests, so every request carries the whole conversation.

import { explain, ServerError } from "./faults.js";
import { summary } from "./insight.js";
import { keep, recall } from "./memory.js";
import { Running } from "./running.js";
import { Tally } from "./tally.js";

const ENDINGS = { length: "It ended at the limit of tokens." };
const LATE_MS = 1000;

export class Chat {
  #server;
  #presence;
  #transcript;
  #insight;
  #settings;
  #speech;
  #messages = [];
  #cut = false;
  #left = false;
  #running = null;
  /** Called when an answer begins or ends. */
  onChange = () => {};
  /** Called when the server wants an API key. */
  onKeyWanted = () => {};
  /** Called with a field of a request that the server did not accept. */
  onSettingWanted = () => {};

  constructor(server, presence, transcript, insight, settings, speech) {
    this.#server = server;
    this.#presence = presence;
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

  /** Shows what this tab remembers. */
  restore() {
    const { messages, cut } = recall();
    this.#messages = messages;
    this.#cut = cut;
    if (cut) this.#transcript.remark("The beginning of this conversation was too long to keep.");
    for (const { role, content, view } of messages) {
      if (role === "user") this.#transcript.question(content);
      else this.#restoreAnswer(view, "Regenerate");
    }
    if (this.unanswered) this.#restoreAnswer({ pieces: [], note: "Not answered yet." }, "Try again");
  }

  #restoreAnswer(view, label) {
    const turn = this.#transcript.answer(view.model);
    turn.add(view.pieces.map(([text, source]) => ({ text, source })));
    turn.note(view.note ?? "");
    turn.close(view.summary ?? "", { label, action: () => this.again() });
  }

  /** The page goes, and perhaps comes back: what is remembered of a running answer is what there is of it now. */
  set left(left) {
    if (left) this.keep();
    this.#left = left;
  }

  /** Remembers the conversation in this tab, with what there is of a running answer. */
  keep() {
    if (this.#left) return;
    const begun = this.#running?.turn.text.text ? [this.#running.message("The page was left before it ended.")] : [];
    keep([...this.#messages, ...begun], this.#cut);
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
    this.#running?.control.abort();
  }

  clear() {
    this.stop();
    this.#running = null;
    this.#presence.keen = false;
    this.#messages = [];
    this.#cut = false;
    this.keep();
    this.#transcript.clear();
    this.#insight.clear(new Tally(performance.now()));
    this.#speech.say("The conversation was cleared.");
    this.onChange();
  }

  /** Tells a reader who waits for the first token what the server waits for. To be called when that was looked at. */
  explainDelay() {
    if (this.#running?.queued) this.#wait(this.#running.turn, this.#presence.why && `${this.#presence.why} Waiting…`);
  }

  #order() {
    return {
      ...(this.#presence.model ? { model: this.#presence.model } : {}),
      ...this.#settings.fields,
      messages: [...this.#settings.system, ...this.#messages.map(({ role, content }) => ({ role, content }))],
      stream: true,
      stream_options: { include_usage: true },
      return_token_sources: true,
    };
  }

  async #answer() {
    const running = new Running(this.#transcript.answer(this.#presence.model), performance.now());
    const { signal } = running.control;
    this.#running = running;
    this.#insight.clear(running.tally);
    this.#speech.begin(performance.now());
    this.keep();
    this.onChange();
    let end = { text: "Something in this page failed.", detail: "", help: "again" };
    try {
      await this.#read(running);
      const empty = running.turn.text.text ? "" : "The model ended its answer at once.";
      end = { text: ENDINGS[running.reason] ?? empty, help: null };
    } catch (error) {
      if (!signal.aborted && !(error instanceof ServerError)) throw error;
      end = signal.aborted ? { text: "Stopped.", help: null } : explain(error, this.#settings.names);
      end.field = error.param;
      if (error.status === 401) this.onKeyWanted();
      else if (!signal.aborted) this.#presence.look();
    } finally {
      if (this.#running === running) this.#finish(running, end);
    }
  }

  /** Reads the answer, which a server that serves another model by now is asked for once more. */
  async #read(running) {
    const late = setTimeout(() => (this.#presence.keen = running.model === null), LATE_MS);
    try {
      await this.#stream(running);
    } catch (error) {
      if (error.code !== "model_not_found") throw error;
      await this.#presence.learn();
      await this.#stream(running);
    } finally {
      clearTimeout(late);
      if (this.#running === running) this.#presence.keen = false;
    }
  }

  async #stream(running) {
    const { turn, tally, control } = running;
    const waiting = (why) => {
      running.queued = why === "";
      this.#wait(turn, why);
    };
    for await (const chunk of this.#server.chat(this.#order(), control.signal, waiting)) {
      const now = performance.now();
      running.take(chunk, now, this.#presence.model);
      if (running.model) this.#presence.keen = false;
      this.#insight.show(tally);
      this.#speech.follow(turn.text.text, now);
      this.#transcript.follow();
    }
  }

  #wait(turn, why) {
    if (turn.noted === why) return;
    turn.note(why);
    if (why) this.#speech.say(why);
    this.#transcript.follow();
  }

  /** What the reader may do after an answer that ended so. */
  #offer({ help, field }) {
    const label = help === null && !this.unanswered ? "Regenerate" : "Try again";
    if (help === null || help === "again") return { label, action: () => this.again() };
    if (help === "clear") return { label: "Clear the conversation", action: () => this.clear() };
    if (help === "settings") return { label: "Show the setting", action: () => this.onSettingWanted(field) };
    return null;
  }

  #finish(running, end) {
    this.#running = null;
    const { turn, tally } = running;
    tally.over = true;
    const fault = end.help !== null;
    const text = turn.text.text;
    if (text) this.#messages.push(running.message(end.text));
    this.keep();
    turn.note(end.text, fault);
    turn.tell(end.detail);
    turn.close(summary(tally), this.#offer(end));
    this.#insight.conclude(tally, running.metrics);
    this.#speech.end(text, fault ? "" : end.text || "The answer is complete.");
    this.#transcript.follow();
    this.onChange();
  }
}
