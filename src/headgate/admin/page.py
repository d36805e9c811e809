"""The page that shows the API and lets people try it: no script, style or font comes from elsewhere."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headgate: admin API</title>
<link rel="stylesheet" href="/docs.css">
<header>
<h1>Headgate</h1>
<p>The admin API. Every request needs a key; it stays in this page. <a href="/openapi.json">openapi.json</a></p>
<label>Key <input id="key" type="password" autocomplete="off" spellcheck="false"></label>
</header>
<main id="routes" aria-live="polite">Loading ...</main>
<script src="/docs.js"></script>
</html>
"""
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
header { border-bottom: 1px solid #8886; margin-bottom: 1rem; padding-bottom: 1rem }
details { border: 1px solid #8886; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem }
summary { cursor: pointer }
summary code { font-weight: 600 }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700 }
textarea, input { font: inherit; width: 100%; box-sizing: border-box }
#key { max-width: 30rem }
textarea { font-family: ui-monospace, monospace; min-height: 8rem }
pre { overflow: auto; background: #8882; padding: .6rem; border-radius: 6px }
button { font: inherit; padding: .2rem 1rem; margin: .4rem 0 }
"""
SCRIPT = """
"use strict";
const make = (tag, text, ...classes) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.classList.add(...classes);
  return element;
};
const resolved = (value, found) => value && value.$ref ? found.components.schemas[value.$ref.split("/").pop()] : value;
const show = (found) => {
  const main = document.getElementById("routes");
  main.textContent = "";
  for (const [path, item] of Object.entries(found.paths)) {
    for (const [method, operation] of Object.entries(item)) main.append(route(path, method, operation, found));
  }
};
const route = (path, method, operation, found) => {
  const details = make("details"), summary = make("summary");
  summary.append(make("span", method.toUpperCase(), "method"), make("code", path), " ", operation.summary || "");
  details.append(summary, make("p", operation.description || ""));
  const inputs = {};
  for (const given of operation.parameters || []) {
    const parameter = resolved(given, found), label = make("label", `${parameter.name} (${parameter.in}) `);
    inputs[parameter.name] = [parameter.in, make("input")];
    label.append(inputs[parameter.name][1]);
    details.append(label);
  }
  let body = null, kind = "";
  if (operation.requestBody) {
    kind = Object.keys(operation.requestBody.content)[0];
    body = make("textarea");
    const example = operation.requestBody.content[kind].example;
    if (example !== undefined) body.value = kind.includes("yaml") ? example : JSON.stringify(example, null, 2);
    details.append(body);
  }
  const button = make("button", "Send"), answer = make("pre");
  button.addEventListener("click", async () => {
    let url = path;
    const query = new URLSearchParams(), headers = {};
    for (const [name, [where, input]] of Object.entries(inputs)) {
      if (!input.value) continue;
      if (where === "path") url = url.replace(`{${name}}`, encodeURIComponent(input.value));
      else if (where === "query") query.set(name, input.value);
      else headers[name] = input.value;
    }
    const key = document.getElementById("key").value;
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body) headers["Content-Type"] = kind;
    if (query.size) url += `?${query}`;
    const said = await fetch(url, { method: method.toUpperCase(), headers, body: body ? body.value : undefined });
    answer.textContent = `${said.status} ${said.statusText}\\n${await said.text()}`;
  });
  details.append(button, answer);
  return details;
};
fetch("/openapi.json").then((said) => said.json()).then(show);
"""
