// Counts of one answer while it streams: tokens by source, the rounds they came in, and speed. No document, no clock:
// times are passed in, in milliseconds.

/** Sources of tokens, in the order in which they stack up. The last one is what the model drew itself. */
export const SOURCES = ["prompt", "history", "learned", "sampled"];

const noTokens = () => Object.fromEntries(SOURCES.map((source) => [source, 0]));

export class Tally {
  tokens = 0;
  counts = noTokens();
  /** One entry a round: tokens by source. A round's last token is sampled; those before it are accepted drafts. */
  rounds = [];
  /** Set once nothing more comes. */
  over = false;
  #open = false;
  #sent;
  #first = null;
  #last = null;
  #atFirst = 0;

  constructor(now) {
    this.#sent = now;
  }

  /** Takes tokens of one chunk. Those of an unknown source count, but belong to no round. */
  add(tokens, now) {
    if (!tokens.length) return;
    for (const { source } of tokens) this.#count(source);
    this.#last = now;
    if (this.#first === null) {
      this.#first = now;
      this.#atFirst = this.tokens;
    }
  }

  #count(source) {
    this.tokens += 1;
    if (!(source in this.counts)) return;
    this.counts[source] += 1;
    if (!this.#open) this.rounds.push(noTokens());
    this.rounds.at(-1)[source] += 1;
    this.#open = source !== "sampled";
  }

  /** Milliseconds from the request to the first token, or null. */
  get firstAfter() {
    return this.#first === null ? null : this.#first - this.#sent;
  }

  /** Tokens a second after the first ones, or null; of an answer that came all at once, since it was asked for. */
  get rate() {
    if (this.#first === null) return null;
    if (this.#last > this.#first) return (1000 * (this.tokens - this.#atFirst)) / (this.#last - this.#first);
    return this.over && this.firstAfter > 0 ? (1000 * this.tokens) / this.firstAfter : null;
  }

  /** Mean tokens of a round, or null. */
  get perRound() {
    const known = SOURCES.reduce((sum, source) => sum + this.counts[source], 0);
    return this.rounds.length ? known / this.rounds.length : null;
  }
}
