// The page: puts the parts together and binds keys and buttons to them.

import { Chat } from "./chat.js";
import { Insight } from "./insight.js";
import { Server, ServerError, pause } from "./server.js";
import { Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { Transcript } from "./transcript.js";

const KEY = "flare.key";
const LOOK_AGAIN_MS = 3000;
const EXAMPLES = [
  "Why is the sky blue?",
  "Write a Python function that says whether a number is prime.",
  "Repeat this, word for word: The quick brown fox jumps over the lazy dog, and the lazy dog does not mind.",
];

const find = (id) => document.getElementById(id);
const server = new Server();
const settings = new Settings(find("settings"), find("settings-fault"));
const transcript = new Transcript(find("transcript"), find("welcome"));
const chat = new Chat(server, transcript, new Insight(document), settings, new Speech(find("spoken")));
const question = find("question");

function keptKey(key) {
  try {
    if (key !== undefined) sessionStorage.setItem(KEY, key);
    return sessionStorage.getItem(KEY);
  } catch {
    return key ?? null; // storage may be forbidden
  }
}

function wantKey() {
  say("absent", server.key ? "API key not accepted" : "an API key is needed");
  if (server.key) find("key-note").textContent = "The server did not accept that key.";
  find("key").hidden = false;
  find("key-value").focus();
}

function say(state, text) {
  find("lamp").dataset.state = state;
  find("model").textContent = text;
}

/** Learns the model's name as soon as the server is ready; looks again until then. */
async function meet() {
  for (;;) {
    try {
      await server.untilReady((why) => say("waiting", why));
      chat.model = await server.model();
      say("ready", chat.model);
      find("key").hidden = true;
      return;
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (error.status === 401) {
        wantKey();
        return;
      }
      say("absent", error.message);
    }
    await pause(LOOK_AGAIN_MS);
  }
}

/** Gives the textarea the height of its text, up to what the style sheet allows. */
function fit() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

function ask(text) {
  if (!chat.ask(text)) return;
  question.value = "";
  fit();
  question.focus();
}

function openSide(open) {
  document.body.classList.toggle("side-open", open);
  find("details").setAttribute("aria-expanded", String(open));
}

chat.onKeyWanted = wantKey;
chat.onChange = () => {
  const focused = [find("send"), find("stop")].includes(document.activeElement);
  find("send").hidden = chat.running;
  find("stop").hidden = !chat.running;
  if (focused) question.focus(); // a hidden button would lose the focus to nowhere
};

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(question.value);
});
question.addEventListener("input", fit);
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask(question.value);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (chat.running) chat.stop();
  else openSide(false);
});
find("stop").addEventListener("click", () => chat.stop());
find("clear").addEventListener("click", () => {
  chat.clear();
  question.focus();
});
find("details").addEventListener("click", () => openSide(!document.body.classList.contains("side-open")));
find("marks").addEventListener("change", (event) => document.body.classList.toggle("plain", !event.target.checked));
find("key").addEventListener("submit", async (event) => {
  event.preventDefault();
  server.key = keptKey(find("key-value").value.trim());
  find("key").hidden = true;
  find("key-value").value = "";
  question.focus();
  await meet();
  if (find("key").hidden && chat.unanswered) chat.again();
});
for (const text of EXAMPLES) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", () => ask(text));
  find("examples").append(button);
}

server.key = keptKey();
question.focus();
meet();
