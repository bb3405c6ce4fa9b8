// Sampling controls: what the reader set, kept in this browser, as fields of a request. An empty control is left out.

const KEY = "flare.sampling";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const TEXTS = ["system", "stop"];

export class Settings {
  #form;
  #fault;

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
      for (const name of [...NUMBERS, ...TEXTS]) this.#control(name).value = kept[name] ?? "";
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
    this.check();
  }

  /** Whether every control holds a possible value; says which one does not. */
  check() {
    const wrong = NUMBERS.map((name) => this.#control(name)).filter((control) => !control.checkValidity());
    for (const name of NUMBERS) this.#control(name).removeAttribute("aria-invalid");
    for (const control of wrong) control.setAttribute("aria-invalid", "true");
    this.#fault.hidden = !wrong.length;
    const label = wrong[0]?.labels[0].textContent.trim();
    this.#fault.textContent = wrong.length ? `${label}: ${wrong[0].validationMessage}` : "";
    wrong[0]?.closest("details").setAttribute("open", "");
    return !wrong.length;
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
