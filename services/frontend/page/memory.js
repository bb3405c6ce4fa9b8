// The conversation across reloads of this tab: in its session storage, gone when it closes. Bounded: when a
// conversation grows too long, its beginning is not kept.

const KEY = "flare.conversation";
const MOST_CHARACTERS = 400_000;

const isMessage = (one) => ["user", "assistant"].includes(one?.role) && typeof one.content === "string";
const isPieces = (found) => Array.isArray(found) && found.every(([text]) => typeof text === "string");

/** The messages `{ role, content, view? }` that this tab keeps, and whether earlier ones were dropped. */
export function recall() {
  try {
    const { messages, cut } = JSON.parse(sessionStorage.getItem(KEY));
    const sound = messages.every((one) => isMessage(one) && (one.role === "user" || isPieces(one.view.pieces)));
    if (sound) return { messages, cut: Boolean(cut) };
  } catch {
    // storage may be forbidden or empty, or hold what another version wrote
  }
  return { messages: [], cut: false };
}

/** Keeps the newest of these messages, beginning with a question. `cut` tells that earlier ones are missing already. */
export function keep(messages, cut) {
  try {
    if (!messages.length) {
      sessionStorage.removeItem(KEY);
      return;
    }
    let kept = messages;
    let text = JSON.stringify({ messages: kept, cut });
    while (text.length > MOST_CHARACTERS && kept.length > 1) {
      const next = kept.findIndex((one, index) => index > 0 && one.role === "user");
      if (next < 0) break;
      kept = kept.slice(next);
      text = JSON.stringify({ messages: kept, cut: true });
    }
    if (text.length <= MOST_CHARACTERS) sessionStorage.setItem(KEY, text);
    else sessionStorage.removeItem(KEY);
  } catch {
    // then it lasts as long as the page
  }
}
