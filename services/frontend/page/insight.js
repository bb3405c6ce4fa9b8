// The side panel about the newest answer: speed, sources, rounds, and what the server says of acceptance at the end.

import { drawRounds } from "./chart.js";
import { SOURCES } from "./tally.js";

const NAMES = {
  sampled: "Sampled",
  learned: "Learned draft",
  history: "Copied from history",
  prompt: "Copied from the chat",
};
const REDRAW_MS = 150;
const NOTHING = "–";

const rounded = (value, digits) => (value === null ? NOTHING : value.toFixed(digits));
const duration = (ms) => (ms === null ? NOTHING : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
const percent = (part, whole) => `${whole ? Math.round((100 * part) / whole) : 0} %`;

function cell(kind, text) {
  const made = document.createElement("td");
  made.className = kind;
  made.textContent = text;
  return made;
}

/** A line about an answer, for its footer. */
export function summary(tally) {
  if (!tally.tokens) return "";
  const parts = [`${tally.tokens} tokens`, `first after ${duration(tally.firstAfter)}`];
  if (tally.rate !== null) parts.splice(1, 0, `${rounded(tally.rate, 1)} tokens/s`);
  if (tally.perRound !== null) parts.push(`${rounded(tally.perRound, 2)} tokens a round`);
  return parts.join(" · ");
}

export class Insight {
  #find;
  #timer = null;
  #rows = {};
  #lengths = {};
  #explanation;

  constructor(document) {
    this.#find = (id) => document.getElementById(id);
    this.#explanation = this.#find("accepted").textContent;
    for (const source of [...SOURCES].reverse()) this.#addRow(source);
    drawRounds(this.#find("chart"), []);
  }

  #addRow(source) {
    const name = document.createElement("th");
    name.scope = "row";
    const sample = document.createElement("span");
    sample.className = `token ${source}`;
    sample.textContent = NAMES[source];
    name.append(sample);
    const row = document.createElement("tr");
    this.#rows[source] = { tokens: cell("number", NOTHING), drafts: cell("number small drafts", "") };
    row.append(name, this.#rows[source].tokens, this.#rows[source].drafts);
    this.#find("legend").tBodies[0].append(row);
    this.#lengths[source] = document.createElement("i");
    this.#lengths[source].className = source;
    this.#find("share").append(this.#lengths[source]);
  }

  /** Shows a tally, soon: many calls in a moment cost one drawing. */
  show(tally) {
    this.#timer ??= setTimeout(() => this.#draw(tally), REDRAW_MS);
  }

  /** Shows a tally for good, with the answer's `metrics` if the server sent them. */
  conclude(tally, metrics) {
    clearTimeout(this.#timer);
    this.#draw(tally);
    const found = metrics?.speculative_decoding;
    if (!found) return;
    const { num_accepted_draft_tokens: accepted, num_draft_tokens: offered, mean_acceptance_length: mean } = found;
    this.#find("accepted").textContent = offered
      ? `${accepted} of ${offered} drafts accepted (${percent(accepted, offered)}); ${mean.toFixed(2)} tokens a drafting round.`
      : "No drafts were offered for this answer.";
    for (const [source, drafts] of Object.entries(found.by_source ?? {})) {
      if (!drafts.num_draft_tokens || !this.#rows[source]) continue;
      const { num_accepted_draft_tokens: stood, num_draft_tokens: tried } = drafts;
      this.#rows[source].drafts.textContent = `${stood} of ${tried}`;
      this.#rows[source].drafts.title = `${stood} of ${tried} drafts accepted`;
    }
  }

  /** Forgets the last answer. */
  clear(tally) {
    clearTimeout(this.#timer);
    this.#draw(tally);
    this.#find("accepted").textContent = this.#explanation;
    for (const row of Object.values(this.#rows)) row.drafts.textContent = row.drafts.title = "";
  }

  #draw(tally) {
    this.#timer = null;
    this.#find("rate").textContent = rounded(tally.rate, 1);
    this.#find("first").textContent = duration(tally.firstAfter);
    this.#find("count").textContent = tally.tokens || NOTHING;
    this.#find("per-round").textContent = rounded(tally.perRound, 2);
    const known = SOURCES.reduce((sum, source) => sum + tally.counts[source], 0);
    for (const source of SOURCES) {
      const count = tally.counts[source];
      this.#rows[source].tokens.textContent = known ? `${count} · ${percent(count, known)}` : NOTHING;
      this.#lengths[source].style.flexGrow = count;
      this.#lengths[source].hidden = !count;
    }
    drawRounds(this.#find("chart"), tally.rounds);
  }
}
