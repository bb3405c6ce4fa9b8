// Sampling controls: what the reader set, kept in this browser, as fields of a request. An empty control is left out.

const KEY = "flare.sampling";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const TEXTS = ["system", "stop"];

export class Settings {
  #form;
  #fault;
  /** Called with a control and what is wrong with it when it keeps a question from being asked. */
  onWrong = () => {};
  /** Called when a control has changed and all are right. */
  onRight = () => {};

  constructor(form, fault) {
    this.#form = form;
    this.#fault = fault;
    this.#restore();
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this.#changed());
    form.addEventListener("reset", () => setTimeout(() => this.#changed())); // after the controls are empty
  }

  #control(name) {
    return this.#form.elements.namedItem(name);
  }

  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY)) ?? {};
      for (const name of [...NUMBERS, ...TEXTS]) {
        const control = this.#control(name);
        control.value = kept[name] ?? "";
        if (!control.checkValidity()) control.value = ""; // nobody remembers it, and it would keep all from being asked
      }
    } catch {
      // storage may be forbidden, or hold what another version wrote
    }
  }

  #changed() {
    const values = {};
    for (const name of [...NUMBERS, ...TEXTS]) {
      const { value } = this.#control(name);
      if (value) values[name] = value;
    }
    try {
      localStorage.setItem(KEY, JSON.stringify(values));
    } catch {
      // then they last as long as the page
    }
    if (!this.#mark()) this.onRight();
  }

  /** Names of the controls, which are those of fields of a request. */
  get names() {
    return [...NUMBERS, "stop"];
  }

  /** Whether every control holds a possible value. */
  check() {
    const wrong = this.#mark();
    if (wrong) this.onWrong(wrong, this.#fault.textContent);
    return !wrong;
  }

  /** Shows one control to the reader, who is to change it. */
  reveal(control) {
    control.closest("details").open = true;
    control.scrollIntoView({ block: "center" });
    control.focus();
  }

  /** The control of a field of a request. */
  named(field) {
    return this.#control(field);
  }

  /** Marks the controls that are wrong, and says so of the first one, which it returns. */
  #mark() {
    const wrong = NUMBERS.map((name) => this.#control(name)).filter((control) => !control.checkValidity());
    for (const name of NUMBERS) {
      this.#control(name).removeAttribute("aria-invalid");
      this.#control(name).removeAttribute("aria-describedby");
    }
    for (const control of wrong) control.setAttribute("aria-invalid", "true");
    wrong[0]?.setAttribute("aria-describedby", this.#fault.id);
    this.#fault.hidden = !wrong.length;
    const label = wrong[0]?.labels[0].textContent.trim();
    this.#fault.textContent = wrong.length ? `${label}: ${wrong[0].validationMessage}` : "";
    return wrong[0] ?? null;
  }

  /** The system prompt as messages: none or one. */
  get system() {
    const content = this.#control("system").value;
    return content.trim() ? [{ role: "system", content }] : [];
  }

  /** The fields of a request that these controls set. */
  get fields() {
    const fields = {};
    for (const name of NUMBERS) {
      const { value } = this.#control(name);
      if (value !== "") fields[name] = Number(value);
    }
    const stops = this.#control("stop").value.split("\n").filter(Boolean);
    if (stops.length) fields.stop = stops.map((text) => text.replaceAll("\\n", "\n"));
    return fields;
  }
}
