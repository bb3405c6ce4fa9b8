// The page: puts the parts together and binds keys and buttons to them.

import { Chat } from "./chat.js";
import { Insight } from "./insight.js";
import { Presence } from "./presence.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { Transcript } from "./transcript.js";

const KEY = "flare.key";
const EXAMPLES = [
  "Why is the sky blue?",
  "Write a Python function that says whether a number is prime.",
  "Repeat this, word for word: The quick brown fox jumps over the lazy dog, and the lazy dog does not mind.",
];

const find = (id) => document.getElementById(id);
const server = new Server();
const presence = new Presence(server);
const settings = new Settings(find("settings"), find("settings-fault"));
const transcript = new Transcript(find("transcript"), find("welcome"));
const chat = new Chat(server, presence, transcript, new Insight(document), settings, new Speech(find("spoken")));
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
  if (server.key) find("key-note").textContent = "The server did not accept that key.";
  find("key").hidden = false;
  find("key-value").focus();
}

/** Shows in the header how the server is, and to who waits for an answer why it does not come. */
function showPresence() {
  const { state, why, model } = presence;
  find("lamp").dataset.state = state;
  find("model").textContent = state === "ready" ? model : why;
  find("model").title = find("model").textContent;
  if (state === "ready") find("key").hidden = true;
  if (state === "locked" && find("key").hidden) wantKey();
  chat.explainDelay();
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

/** Names the control that keeps a question from being asked, where it was to be asked, and shows it. */
function showWrong(control, why) {
  find("composer-fault").textContent = `${why} Change it under Sampling.`;
  find("composer-fault").hidden = false;
  transcript.follow();
  showSetting(control);
}

function showSetting(control) {
  openSide(true); // on a narrow screen nothing of it can be seen otherwise
  settings.reveal(control);
}

presence.onLook = showPresence;
settings.onWrong = showWrong;
settings.onRight = () => (find("composer-fault").hidden = true);
chat.onKeyWanted = () => presence.lock();
chat.onSettingWanted = (field) => showSetting(settings.named(field));
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
  await presence.look();
  if (find("key").hidden && chat.unanswered) chat.again();
});
for (const text of EXAMPLES) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", () => ask(text));
  find("examples").append(button);
}

addEventListener("pagehide", () => (chat.left = true));
addEventListener("pageshow", () => (chat.left = false));

server.key = keptKey();
chat.restore();
question.focus();
presence.look();
