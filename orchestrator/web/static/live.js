"use strict";
// Keeps a page as the database is: asks for its main part again when the server says that something has changed.

const QUIET_MS = 1000; // between two requests
const TAIL_BYTES = 65536; // of a log, to begin with
const MAX_LOG_CHARACTERS = 2000000;

/* --- changes --- */

function keepLive() {
  const state = document.getElementById("live");
  let due = false;
  let last = 0;

  function ask() {
    if (!due || document.hidden) return;
    const wait = last + QUIET_MS - Date.now();
    if (wait > 0) {
      setTimeout(ask, wait);
      return;
    }
    due = false;
    last = Date.now();
    htmx.trigger("#main", "changed");
  }

  function hear() {
    due = true;
    ask();
  }

  const source = new EventSource("/api/v1/changes");
  let wasLost = false;
  source.addEventListener("open", () => {
    state.textContent = "live";
    if (wasLost) hear();
    wasLost = false;
  });
  source.addEventListener("error", () => {
    state.textContent = "reconnecting";
    wasLost = true;
  });
  source.addEventListener("changed", hear);
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("pagehide", () => source.close());
}

// What the reader has opened, typed or loaded stays when the rest of the page is replaced.
function keepWhatIsTheReaders() {
  Idiomorph.defaults.ignoreActiveValue = true;
  Object.assign(Idiomorph.defaults.callbacks, {
    beforeNodeMorphed: (old) => !(old.dataset && ("log" in old.dataset || "plot" in old.dataset)),
    beforeAttributeUpdated: (name, element) => !(name === "open" && element.tagName === "DETAILS"),
  });
}

/* --- times that go on --- */

function format(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function tick() {
  for (const element of document.querySelectorAll("[data-since]")) {
    element.textContent = format(Math.max((Date.now() - Date.parse(element.dataset.since)) / 1000, 0));
  }
}

/* --- logs --- */

const COLOUR = /\x1b\[[0-9;:]*m/g;
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

function plain(text) {
  const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replace(COLOUR, "").replace(/\r\n?/g, "\n").replace(HIDDEN, escaped);
}

async function follow(log) {
  const decoder = new TextDecoder();
  try {
    const response = await fetch(`${log.dataset.log}?follow=true&offset=-${TAIL_BYTES}`);
    if (!response.ok) throw new Error((await response.json()).detail);
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
      const text = log.textContent + plain(decoder.decode(part.value, { stream: true }));
      log.textContent = text.slice(-MAX_LOG_CHARACTERS);
      if (isAtEnd) log.scrollTop = log.scrollHeight;
    }
    if (!log.textContent) log.textContent = "It is empty, or no longer on this machine.";
  } catch (error) {
    log.textContent += `\nThe log can't be read: ${error.message}`;
  }
}

function followOpenLogs() {
  for (const log of document.querySelectorAll("details[open] [data-log]")) {
    if (!("isFollowed" in log.dataset)) {
      log.dataset.isFollowed = "";
      follow(log);
    }
  }
}

/* --- start --- */

if (document.querySelector("[data-live]")) {
  keepWhatIsTheReaders();
  keepLive();
}
setInterval(tick, 1000);
followOpenLogs();
document.addEventListener("toggle", followOpenLogs, true);
document.addEventListener("htmx:afterSettle", followOpenLogs);
