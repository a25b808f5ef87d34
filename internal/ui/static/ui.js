// Replaces the parts of the page that the server sends. Without this script the page shows the state of its last load.
"use strict";

const connection = document.getElementById("connection");
let source;

function show(state, text) {
  connection.className = state;
  connection.textContent = text;
}

function connect() {
  source = new EventSource(location.href);
  source.onopen = () => show("live", "live");
  source.onmessage = (message) => {
    for (const [part, html] of Object.entries(JSON.parse(message.data))) {
      const element = document.getElementById(part);
      const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      element.innerHTML = html;
      if (focused) element.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
  };
  source.onerror = () => show("lost", "disconnected: does muster ui still run?");
}

// A browser opens only six connections to one server, so a hidden page closes its connection.
document.addEventListener("visibilitychange", () => {
  source?.close();
  if (!document.hidden) connect();
});
if (!document.hidden) connect();
