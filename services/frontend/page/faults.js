// What went wrong, for who chats: a sentence, what may help, and the server's own words for who wants to know.

/** A refusal or failure. `status` is HTTP's, or 0 when there is none; `code` and `param` are the server's, or null. */
export class ServerError extends Error {
  constructor(message, status = 0, { code = null, param = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

const AGAIN = "again", CLEAR = "clear", SETTINGS = "settings", NOTHING = "nothing";

const KNOWN = {
  state_lost: ["The worker restarted while it was answering. Try again.", AGAIN],
  round_failed: ["The model failed in the middle of this answer. Try again.", AGAIN],
  service_unavailable: ["The server stopped being available while it was answering. Try again.", AGAIN],
  overloaded: ["The server is busy. Try again in a moment.", AGAIN],
  model_not_found: ["The server serves another model now. Try again.", AGAIN],
  context_length_exceeded: [
    "This conversation is longer than the model can read. Clear it, or ask something shorter.", CLEAR,
  ],
  body_too_large: ["This conversation is larger than the server takes. Clear it, or ask something shorter.", CLEAR],
};
const SENTENCES = {
  [SETTINGS]: "The server does not accept one of the sampling values. Change it and ask again.",
  [CLEAR]: "The server cannot answer this conversation as it is. Change the question, or clear it all.",
  [AGAIN]: "The server failed at this answer. Try again.",
  [NOTHING]: "The server asks for an API key.",
};

const REASONS = {
  "no worker is attached": "The worker is not there yet; it may still be loading the model.",
  "the worker is being attached": "The worker is there in a moment.",
  "the server is loading": "The server is loading.",
};

/** Why the server is not ready, as a sentence; `reason` is its own. */
export const notReady = (reason) => REASONS[reason] ?? `The server is not ready: ${reason}.`;

function remedy({ status, code, param }, controls) {
  if (status === 401) return NOTHING;
  const refused = KNOWN[code]?.[1] === CLEAR || (status >= 400 && status < 500) || code === "invalid_request";
  if (refused && controls.includes(param?.split(/[.[]/)[0])) return SETTINGS;
  return KNOWN[code]?.[1] ?? (refused ? CLEAR : AGAIN);
}

/** A `ServerError` as `{ text, detail, help }`; `help` is again, clear, settings or nothing. `controls` are the fields
 *  of a request that the reader can change on the page. */
export function explain(error, controls) {
  const help = remedy(error, controls);
  if (error.status === 0 && error.code === null) return { text: error.message, detail: "", help };
  const known = KNOWN[error.code];
  const text = known && known[1] === help ? known[0] : SENTENCES[help];
  return { text, detail: error.message, help };
}
