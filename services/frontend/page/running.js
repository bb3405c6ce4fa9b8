// The answer that is running: how to end it, where it is shown, and what is counted and known of it so far.

import { summary } from "./insight.js";
import { Tally } from "./tally.js";

/** The tokens of a chunk's choice; of an unknown source when the server does not tell. */
function tokensOf(choice) {
  if (choice.token_sources) return choice.token_sources;
  const text = choice.delta.content;
  return text ? [{ text, source: null }] : [];
}

export class Running {
  control = new AbortController();
  /** Whether the server has taken the request, and nothing has come of it yet. */
  queued = false;
  /** Who answers; null before something comes. */
  model = null;
  /** Why it ended, and its metrics, as the server says. */
  reason = null;
  metrics = undefined;

  constructor(turn, now) {
    this.turn = turn;
    this.tally = new Tally(now);
  }

  /** Takes one chunk. `model` answers if the chunk does not say who does. */
  take(chunk, now, model) {
    this.metrics = chunk.metrics ?? this.metrics;
    const choice = chunk.choices[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const tokens = tokensOf(choice);
    if (!tokens.length) return;
    if (this.model === null) this.#begin(chunk.model ?? model ?? "Answer");
    this.tally.add(tokens, now);
    this.turn.add(tokens);
  }

  /** Something comes: nobody waits any more, and it is known who answers. */
  #begin(model) {
    this.queued = false;
    this.model = model;
    this.turn.name(model);
    this.turn.note("");
  }

  /** The message that it is so far, with what is needed to show it again. */
  message(note) {
    const { text, pieces } = this.turn.text;
    return { role: "assistant", content: text, view: { model: this.model, pieces, note, summary: summary(this.tally) } };
  }
}
