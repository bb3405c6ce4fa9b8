// Whether the server is there, and which model it serves: looked at now and then for as long as the page can be seen,
// more often while something is wrong or an answer is late.

import { notReady, ServerError } from "./faults.js";

const CALM_MS = 5000;
const KEEN_MS = 1000;
const PATIENCE_MS = 5000;

export class Presence {
  #server;
  #timer = null;
  #looking = null;
  #keen = false;
  /** The served model's name, or null while unknown. */
  model = null;
  /** unknown, ready, waiting, absent, or locked, when a key is wanted: then nothing is looked at until `look`. */
  state = "unknown";
  /** Why the server cannot answer, as a sentence; empty if it can. */
  why = "";
  /** Called after every look. */
  onLook = () => {};

  constructor(server) {
    this.#server = server;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.#timer);
      if (!document.hidden && this.state !== "locked") this.look();
    });
  }

  /** Whether someone waits for the server. */
  set keen(keen) {
    if (keen && !this.#keen && this.state !== "locked") this.look();
    this.#keen = keen;
  }

  /** Looks now. */
  look() {
    clearTimeout(this.#timer);
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null;
      clearTimeout(this.#timer);
      const pause = this.state === "ready" && !this.#keen ? CALM_MS : KEEN_MS;
      if (this.state !== "locked" && !document.hidden) this.#timer = setTimeout(() => this.look(), pause);
      this.onLook();
    });
    return this.#looking;
  }

  /** The server wants a key, or another one. */
  lock() {
    clearTimeout(this.#timer);
    this.#tell("locked", "An API key is needed.");
    this.onLook();
  }

  /** Asks for the model's name anew. Raises `ServerError`. */
  async learn() {
    this.model = await this.#server.model();
    this.#tell("ready", "");
    this.onLook();
  }

  async #look() {
    const patience = AbortSignal.timeout(PATIENCE_MS);
    try {
      const reason = await this.#server.unready(patience);
      if (reason !== null) this.#tell("waiting", notReady(reason));
      else if (this.state !== "ready") {
        this.model = await this.#server.model(); // it may have come back with another one
        this.#tell("ready", "");
      }
    } catch (error) {
      if (patience.aborted) this.#tell("absent", "The server does not answer.");
      else if (!(error instanceof ServerError)) throw error;
      else if (error.status === 401) this.#tell("locked", "An API key is needed.");
      else this.#tell("absent", error.message);
    }
  }

  #tell(state, why) {
    this.state = state;
    this.why = why;
  }
}
