// The chart of rounds: one bar a round, its tokens stacked by source. Many rounds share a bar, which shows their mean.

import { SOURCES } from "./tally.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const LEFT = 20;
const RIGHT = 318;
const TOP = 8;
const BOTTOM = 108;
const MOST_BARS = 60;
const FEWEST_BARS = 16;

function shape(name, attributes, text = "") {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** How many rounds share a bar. */
export const roundsOfBar = (rounds) => Math.max(1, Math.ceil(rounds.length / MOST_BARS));

/** Rounds gathered into at most `MOST_BARS` bars of mean tokens by source. */
export function bars(rounds) {
  const each = roundsOfBar(rounds);
  const found = [];
  for (let start = 0; start < rounds.length; start += each) {
    const group = rounds.slice(start, start + each);
    const mean = (source) => group.reduce((sum, round) => sum + round[source], 0) / group.length;
    found.push(Object.fromEntries(SOURCES.map((source) => [source, mean(source)])));
  }
  return found;
}

const height = (bar) => SOURCES.reduce((sum, source) => sum + bar[source], 0);

function scale(highest, y) {
  const step = Math.ceil(highest / 4);
  const drawn = [];
  for (let value = 0; value <= highest; value += step) {
    drawn.push(shape("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: y(value), y2: y(value) }));
    drawn.push(shape("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, String(value)));
  }
  return drawn;
}

/** Names the first and the last round under their bars, and says what a bar is where there is room for it. */
function legend(shown, rounds, pitch) {
  if (!shown) return [];
  const under = (index) => ({ x: LEFT + (index + 0.5) * pitch, y: 124, "text-anchor": "middle" });
  const drawn = [shape("text", under(0), "1")];
  if (shown > 1) {
    const last = under(shown - 1);
    const edge = last.x > RIGHT - 12 ? { x: RIGHT, "text-anchor": "end" } : {};
    drawn.push(shape("text", { ...last, ...edge, class: "last" }, String(rounds.length)));
  }
  const each = roundsOfBar(rounds);
  const text = each > 1 ? `each bar: ${each} rounds, mean` : "rounds";
  const free = shown <= FEWEST_BARS ? { x: RIGHT, "text-anchor": "end" } : { x: (LEFT + RIGHT) / 2, "text-anchor": "middle" };
  if (shown < FEWEST_BARS - 3 || shown > FEWEST_BARS) drawn.push(shape("text", { y: 124, ...free, class: "unit" }, text));
  return drawn;
}

/** Draws `rounds` into the SVG element, in place of what it shows. */
export function drawRounds(svg, rounds) {
  const shown = bars(rounds);
  const highest = Math.max(4, ...shown.map((bar) => Math.ceil(height(bar))));
  const y = (value) => BOTTOM - (value * (BOTTOM - TOP)) / highest;
  const pitch = (RIGHT - LEFT) / Math.max(shown.length, FEWEST_BARS);
  const drawn = [...scale(highest, y), ...legend(shown.length, rounds, pitch)];
  shown.forEach((bar, index) => {
    let base = 0;
    // What was sampled lies at the bottom, one token high: all above it was gained by drafts.
    for (const source of [...SOURCES].reverse()) {
      if (!bar[source]) continue;
      const top = base + bar[source];
      const box = { x: LEFT + index * pitch + 0.5, y: y(top), width: Math.max(pitch - 1, 0.5), height: y(base) - y(top) };
      drawn.push(shape("rect", { class: source, ...box }));
      base = top;
    }
  });
  svg.replaceChildren(...drawn);
  const tokens = rounds.reduce((sum, round) => sum + height(round), 0);
  const each = roundsOfBar(rounds);
  const label = rounds.length ? `${tokens} tokens in ${rounds.length} rounds` : "No rounds yet";
  svg.setAttribute("aria-label", each > 1 ? `${label}; each bar is the mean of ${each} rounds` : label);
}
