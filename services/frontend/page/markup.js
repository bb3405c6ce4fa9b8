// The little Markdown that answers are shown with, a line at a time: headings, bullets, bold, italics and code. It only
// says which stretch of a line looks how; no character is dropped, and what is in doubt stays as it was written.

const FENCE = /^ {0,3}```([^`]*)$/;
const FENCE_END = /^ {0,3}```\s*$/;
const HEADING = /^ {0,3}#{1,6} +(?=\S)/;
const ITEM = /^(\s*)[-*+](?= +\S)/;
// Stars inside of words are left alone: in x**2 + y**2 they are no emphasis.
const INLINE = new RegExp(
  [
    /(?<!`)(?<tick>`{1,2})(?!`)(?<literal>.+?)(?<!`)\k<tick>(?!`)/,
    /(?<![\w*])\*\*(?=\S)(?<strong>.+?)(?<=\S)\*\*(?![\w*])/,
    /(?<![\w*])\*(?=[^\s*])(?<em>.+?)(?<=[^\s*])\*(?![\w*])/,
  ].map((one) => one.source).join("|"),
  "g",
);

/** Whether a line may be more than plain text. */
export const mayMatter = (text) => /[*`#+-]/.test(text);

/** Whether this line of code ends it. */
export const endsCode = (line) => FENCE_END.test(line);

/** The language of the code that this line begins, perhaps empty; null if it begins none. */
export const beginsCode = (line) => FENCE.exec(line.replace("\n", ""))?.[1].trim() ?? null;

function inline(text, kind, runs) {
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const name = ["literal", "strong", "em"].find((one) => found.groups[one] !== undefined);
    const inner = found.groups[name];
    const side = (found[0].length - inner.length) / 2;
    runs.push([found.index - at, kind], [side, "mark"]);
    if (name === "literal") runs.push([inner.length, `${kind} literal`]);
    else inline(inner, `${kind} ${name}`, runs);
    runs.push([side, "mark"]);
    at = found.index + found[0].length;
  }
  runs.push([text.length - at, kind]);
}

/** A line of prose as `{ kind, runs }`: kind is plain, heading, item or fence; runs are `[length, classes]`, in order and
 *  without gaps. A run of class `mark` is not shown. */
export function layOut(line) {
  const runs = [];
  if (beginsCode(line) !== null) return { kind: "fence", runs: [[line.length, ""]] };
  const heading = HEADING.exec(line)?.[0].length;
  if (heading) runs.push([heading, "mark"]);
  const item = heading ? null : ITEM.exec(line);
  if (item) runs.push([item[1].length, ""], [1, "bullet"]);
  inline(line.slice(heading ?? item?.[0].length ?? 0), "", runs);
  return { kind: heading ? "heading" : item ? "item" : "plain", runs: runs.filter(([length]) => length) };
}
