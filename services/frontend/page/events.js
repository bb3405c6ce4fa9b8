// Server-sent events out of a response's bytes, however the network cut them: in the middle of a line, of a line break
// or of a character. Comments, which only keep a connection alive, are dropped.

export class EventParser {
  #rest = "";
  #data = [];

  /** The data of each event that `text` completed, in order. */
  feed(text) {
    // A carriage return at the very end may be the first half of a line break.
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    const found = [];
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) found.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    return found;
  }
}

/** The data of each event of a ReadableStream of bytes, as it comes. Leaving the loop cancels the stream. */
export async function* readEvents(stream) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.feed(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // it may be over or aborted already
  }
}
