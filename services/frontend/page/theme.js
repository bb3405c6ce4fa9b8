// The theme: the system's until the reader chooses the other one. A classic script in the head, so that no wrong
// colours flash up before the modules are loaded.
(() => {
  const KEY = "flare.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden
    }
  }

  function choose(theme) {
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // then it lasts as long as the page
    }
  }

  function show(theme) {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    button?.setAttribute("aria-pressed", String(theme === "dark"));
  }

  const current = () => document.documentElement.dataset.theme;
  const wanted = () => chosen() ?? (system.matches ? "dark" : "light");

  show(wanted());
  system.addEventListener("change", () => show(wanted()));
  addEventListener("DOMContentLoaded", () => {
    show(current());
    document.getElementById("theme").addEventListener("click", () => {
      const other = current() === "dark" ? "light" : "dark";
      choose(other);
      show(other);
    });
  });
})();
