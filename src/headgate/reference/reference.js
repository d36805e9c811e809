"use strict";
// Swagger UI follows a class, and the class follows the system.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
follow();
dark.addEventListener("change", follow);

// Everything that is said of an operation can be searched for; by itself, Swagger UI searches tags and paths only.
const wordsOf = (tag, each) => {
  const operation = each.get("operation");
  const parameters = (operation.get("parameters") || []).map((given) => given.get("name") || "");
  const texts = [tag, each.get("method"), each.get("path"), operation.get("summary"), operation.get("description")];
  return [...texts, operation.get("operationId"), ...parameters].join("\n").toLowerCase();
};
const found = (tagged, phrase) => {
  const wanted = phrase.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (tag) => (each) => wanted.every((word) => wordsOf(tag, each).includes(word));
  return tagged
    .map((group, tag) => group.set("operations", group.get("operations").filter(fits(tag))))
    .filter((group) => group.get("operations").size);
};
const Search = ({ React }) => ({ layoutActions, layoutSelectors, specSelectors }) => {
  const phrase = layoutSelectors.currentFilter();
  const groups = [...specSelectors.taggedOperations().values()];
  const count = groups.reduce((sum, group) => sum + group.get("operations").size, 0);
  return React.createElement("search", { className: "wrapper operation-search" },
    React.createElement("label", null, "Search",
      React.createElement("input", {
        type: "search",
        value: typeof phrase === "string" ? phrase : "",
        placeholder: "Words of a path, a summary or a description",
        onChange: (event) => layoutActions.updateFilter(event.target.value),
      })),
    React.createElement("output", null, count === 1 ? "1 operation" : `${count} operations`));
};

// The example of a command has a place for the key, and not the key: it would be on the screen, and in screenshots.
const SECRETS = ["Authorization", "X-Api-Key"];
const masked = (request) => SECRETS.reduce(
  (rest, name) => rest.hasIn(["headers", name]) ? rest.setIn(["headers", name], name === "Authorization" ? "Bearer KEY" : "KEY") : rest,
  request,
);
const Command = (Original, { React }) => (props) => React.createElement(Original, { ...props, request: masked(props.request) });

const plugin = (system) => ({
  fn: { opsFilter: found },
  components: { FilterContainer: Search(system) },
  wrapComponents: { curl: Command },
});

SwaggerUIBundle({
  dom_id: "#reference",
  url: "openapi.json",
  plugins: [plugin],
  filter: true,
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  persistAuthorization: false,
  validatorUrl: null,
});
