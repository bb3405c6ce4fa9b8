// The server as this page sees it: which model, whether it is ready, and answers as they stream in. A server that is
// loading or full is waited for; every other refusal becomes a `ServerError`.

import { readEvents } from "./events.js";
import { notReady, ServerError } from "./faults.js";

const LOOK_AGAIN_MS = 1000;
const LONGEST_WAIT_S = 60;

/** Resolves after `ms`; rejects with the signal's reason once it is aborted. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const leave = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", leave);
      resolve();
    }, ms);
    signal?.addEventListener("abort", leave, { once: true });
  });
}

async function refusal(response) {
  const { error } = await response.json().catch(() => ({}));
  return new ServerError(error?.message ?? `The server answered ${response.status}.`, response.status, error);
}

export class Server {
  /** The API key, or null. */
  key = null;

  async #fetch(path, options = {}) {
    const headers = { ...options.headers };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    try {
      return await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new ServerError("The server cannot be reached.");
    }
  }

  /** The name of the served model. Raises `ServerError`. */
  async model() {
    const response = await this.#fetch("v1/models");
    if (!response.ok) throw await refusal(response);
    return (await response.json()).data[0].id;
  }

  /** Why the server is not ready, or null when it is. */
  async unready(signal) {
    const response = await this.#fetch("ready", { signal });
    if (response.ok) return null;
    const { reason } = await response.json().catch(() => ({}));
    return reason ?? "it does not say why";
  }

  /** Waits until the server is ready, telling the reason through `waiting` whenever it looks. */
  async untilReady(waiting, signal) {
    for (let reason; (reason = await this.unready(signal)) !== null; await pause(LOOK_AGAIN_MS, signal)) {
      waiting(`${notReady(reason)} Waiting…`);
    }
  }

  /** The chunks of an answer. `waiting` is told why nothing happens yet. Raises `ServerError`, or AbortError. */
  async *chat(order, signal, waiting) {
    const response = await this.#admitted(order, signal, waiting);
    waiting(""); // not for being let in any more, but the server may have to wait before it begins
    let complete = false;
    try {
      for await (const data of readEvents(response.body)) {
        if (data === "[DONE]") {
          complete = true;
          return;
        }
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ServerError(chunk.error.message, 0, chunk.error);
        yield chunk;
      }
    } catch (error) {
      if (signal.aborted || error instanceof ServerError) throw error;
      throw new ServerError("The connection broke before the answer was complete.");
    }
    if (!complete) throw new ServerError("The connection ended before the answer was complete.");
  }

  async #admitted(order, signal, waiting) {
    const body = JSON.stringify(order);
    for (;;) {
      const headers = { "Content-Type": "application/json" };
      const response = await this.#fetch("v1/chat/completions", { method: "POST", headers, body, signal });
      if (response.ok) return response;
      if (response.status === 429) {
        const seconds = Math.min(Number(response.headers.get("Retry-After")) || 1, LONGEST_WAIT_S);
        waiting(`The server is busy. Trying again in ${seconds} s…`);
        await pause(seconds * 1000, signal);
      } else if (response.status === 503) {
        const { message } = await refusal(response);
        waiting(`${notReady(message)} Waiting…`);
        await pause(LOOK_AGAIN_MS, signal);
        await this.untilReady(waiting, signal);
      } else {
        throw await refusal(response);
      }
    }
  }
}
