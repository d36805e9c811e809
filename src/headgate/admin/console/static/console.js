// What pages do beyond HTML. Everything here is asked for by an attribute, and pages work without it.
"use strict";

const root = document.documentElement;
root.classList.add("js");

/** Fetches a page and puts its element with the same id in the place of each that is given. */
async function refresh(elements, url, options = {}) {
  const answer = await fetch(url, { ...options, headers: { accept: "text/x-part", "x-live": "1", ...options.headers } });
  if (answer.status === 401) location.reload(); // the session has ended
  const type = answer.headers.get("content-type") || "";
  if (!type.startsWith("text/html")) throw new Error(`${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const element of elements) {
    const fresh = page.getElementById(element.id);
    if (fresh && !element.contains(document.activeElement)) element.replaceWith(fresh);
  }
  labelCells();
  return page;
}

// Wide tables: each cell has the heading of its column, which a phone shows beside it instead of a row of headings.
function labelCells() {
  for (const table of document.querySelectorAll(".scroll:not(.tall) > table")) {
    const headings = [...table.querySelectorAll("thead th")].map((each) => each.textContent);
    if (headings.length < 4) continue;
    table.classList.add("wide");
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, place) => { cell.dataset.label = headings[place]; });
  }
}

// data-live="SECONDS" on an element with an id: it is fetched again while it is visible.
function live() {
  const elements = [...document.querySelectorAll("[data-live]")];
  if (!elements.length) return;
  const seconds = Math.max(1, Math.min(...elements.map((each) => Number(each.dataset.live) || 5)));
  const again = async () => {
    if (!document.hidden) {
      const present = [...document.querySelectorAll("[data-live]")];
      try {
        await refresh(present, location.href);
        present.forEach((each) => each.classList.remove("stale"));
      } catch {
        present.forEach((each) => each.classList.add("stale")); // and the next time may do better
      }
    }
    setTimeout(again, seconds * 1000);
  };
  setTimeout(again, seconds * 1000);
}

// data-preview="ID ..." on a form: what it would do is shown in those elements while the form is edited. The answer is
// that of its button with data-previews (else of its action), which changes nothing.
function preview(form) {
  let waiting, typed, latest = 0;
  const show = async () => {
    const mine = latest;
    const targets = form.dataset.preview.split(" ").map((id) => document.getElementById(id))
      .filter((each) => each && !each.contains(typed)); // the edited element is not replaced
    targets.forEach((each) => each.classList.add("stale"));
    const button = form.querySelector("[data-previews]");
    const url = (button && button.formAction) || form.action;
    const fields = new URLSearchParams(new FormData(form));
    const asks = (button ? button.formMethod : form.method) === "post"
      ? [url, { method: "POST", body: fields }] : [`${url.split("?")[0]}?${fields}`, {}];
    try {
      const answer = await fetch(asks[0], { ...asks[1], headers: { accept: "text/x-part" } });
      if (answer.status === 401) location.reload();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (mine !== latest) return; // the form was edited again
      const focused = document.activeElement;
      targets.forEach((each) => {
        const fresh = page.getElementById(each.id);
        if (fresh) each.replaceWith(fresh); else each.classList.remove("stale");
      });
      labelCells();
      if (!focused.isConnected && focused.id) document.getElementById(focused.id)?.focus();
      const marked = typed.id && page.getElementById(typed.id);
      if (marked) typed.setAttribute("aria-invalid", marked.getAttribute("aria-invalid") ?? "false");
      form.dispatchEvent(new CustomEvent("previewed", { detail: page }));
    } catch {
      targets.forEach((each) => each.classList.remove("stale"));
    }
  };
  form.addEventListener("input", (event) => {
    if (event.target.name === "reason") return; // which says nothing about what would be
    typed = event.target;
    latest += 1;
    clearTimeout(waiting);
    waiting = setTimeout(show, 350);
  });
}

// data-confirm="QUESTION" on a button: asked before its form is sent.
document.addEventListener("submit", (event) => {
  const question = event.submitter && event.submitter.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

// data-copy="ID" on a button: the text of that element goes to the clipboard.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source); // no clipboard without TLS: one key is left to press
  }
});

// Menus close by a click elsewhere and by Escape.
document.addEventListener("click", (event) => {
  for (const popup of document.querySelectorAll("[data-popup][open]")) if (!popup.contains(event.target)) popup.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const popup of document.querySelectorAll("[data-popup][open]")) popup.open = false;
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const find = document.getElementById("find");
    if (find) { find.focus(); event.preventDefault(); }
  }
});

const menu = document.querySelector("[data-menu]");
if (menu) menu.addEventListener("click", () => {
  const isOpen = document.getElementById("navigation").classList.toggle("open");
  menu.setAttribute("aria-expanded", String(isOpen));
});

// The theme: that of the system, unless the user has chosen one.
const themes = ["system", "light", "dark"];
const themed = document.querySelector("[data-theme]:not(html)");
function show(theme) {
  if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
  if (themed) { themed.textContent = `Theme: ${theme}`; themed.hidden = false; }
}
let theme = "system";
try { theme = localStorage.getItem("theme") || theme; } catch { /* a browser that keeps nothing */ }
show(themes.includes(theme) ? theme : "system");
if (themed) themed.addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  show(theme);
  try { localStorage.setItem("theme", theme); } catch { /* it lasts as long as the page */ }
});

document.querySelectorAll("form[data-preview]").forEach(preview);
labelCells();
live();
