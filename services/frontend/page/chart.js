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

/** Rounds gathered into at most `MOST_BARS` bars of mean tokens by source. */
export function bars(rounds) {
  const each = Math.max(1, Math.ceil(rounds.length / MOST_BARS));
  const found = [];
  for (let start = 0; start < rounds.length; start += each) {
    const group = rounds.slice(start, start + each);
    const mean = (source) => group.reduce((sum, round) => sum + round[source], 0) / group.length;
    found.push(Object.fromEntries(SOURCES.map((source) => [source, mean(source)])));
  }
  return found;
}

const height = (bar) => SOURCES.reduce((sum, source) => sum + bar[source], 0);

function axes(highest, rounds, y) {
  const step = Math.ceil(highest / 4);
  const drawn = [];
  for (let value = 0; value <= highest; value += step) {
    drawn.push(shape("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: y(value), y2: y(value) }));
    drawn.push(shape("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, String(value)));
  }
  if (rounds > 0) drawn.push(shape("text", { x: LEFT, y: 124 }, "round 1"));
  if (rounds > 1) drawn.push(shape("text", { x: RIGHT, y: 124, "text-anchor": "end" }, String(rounds)));
  return drawn;
}

/** Draws `rounds` into the SVG element, in place of what it shows. */
export function drawRounds(svg, rounds) {
  const shown = bars(rounds);
  const highest = Math.max(4, ...shown.map((bar) => Math.ceil(height(bar))));
  const y = (value) => BOTTOM - (value * (BOTTOM - TOP)) / highest;
  const pitch = (RIGHT - LEFT) / Math.max(shown.length, FEWEST_BARS);
  const drawn = axes(highest, rounds.length, y);
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
  const label = rounds.length ? `${tokens} tokens in ${rounds.length} rounds` : "No rounds yet";
  svg.setAttribute("aria-label", label);
}
