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
    const elsewhere = item.servers ? item.servers[0].url : "";
    for (const method of METHODS) if (item[method]) main.append(route(path, method, item[method], found, elsewhere));
  }
};
const METHODS = ["get", "post", "put", "patch", "delete"];
const route = (path, method, operation, found, elsewhere) => {
  const details = make("details"), summary = make("summary");
  summary.append(make("span", method.toUpperCase(), "method"), make("code", path), " ", operation.summary || "");
  details.append(summary, make("p", operation.description || ""));
  if (elsewhere) {
    details.append(make("p", `The decision plane answers this, not the admin plane: ${elsewhere}${path}`));
    return details;
  }
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
    answer.textContent = `${said.status} ${said.statusText}\n${await said.text()}`;
  });
  details.append(button, answer);
  return details;
};
fetch("/openapi.json").then((said) => said.json()).then(show);
