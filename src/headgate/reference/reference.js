"use strict";
// Swagger UI follows a class; the class follows the system.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
follow();
dark.addEventListener("change", follow);

// The search covers all texts of an operation; that of Swagger UI, tags and paths.
const textOf = (tag, each) => {
  const operation = each.get("operation");
  const texts = ["summary", "description", "operationId"].map((name) => operation.get(name));
  const parameters = (operation.get("parameters") || []).map((given) => given.get("name"));
  return [tag, each.get("method"), each.get("path"), ...texts, ...parameters].join("\n").toLowerCase();
};
const opsFilter = (groups, phrase) => {
  const words = phrase.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (tag) => (each) => words.every((word) => textOf(tag, each).includes(word));
  return groups
    .map((group, tag) => group.set("operations", group.get("operations").filter(fits(tag))))
    .filter((group) => group.get("operations").size);
};
const SECRETS = { Authorization: "Bearer KEY", "X-Api-Key": "KEY" };
const KEY_INPUTS = ["auth-bearer-value", "api_key_value"];

const plugin = ({ React: { createElement: make } }) => {
  const bar = ({ layoutActions, layoutSelectors, specSelectors }) => {
    const phrase = layoutSelectors.currentFilter(), groups = specSelectors.taggedOperations();
    const count = groups.reduce((sum, group) => sum + group.get("operations").size, 0);
    const search = make("input", {
      type: "search",
      value: typeof phrase === "string" ? phrase : "",
      placeholder: "A path, or words about it",
      onChange: (event) => layoutActions.updateFilter(event.target.value),
    });
    const links = groups.keySeq().map((tag) =>
      make("a", { key: tag, href: `#operations-tag-${tag.replaceAll(" ", "_")}` }, tag));
    return make("div", { className: "wrapper bar" },
      make("search", null,
        make("label", null, "Search", search),
        make("output", null, count === 1 ? "1 operation" : `${count} operations`)),
      make("nav", { "aria-label": "Groups" }, links));
  };
  // Fields get the names that Swagger UI leaves out, for screen readers.
  const labelled = (text) => (Original) => (props) =>
    make("label", { className: "labelled" }, make("span", null, text || props.description || "Value"), make(Original, props));
  return {
    fn: { opsFilter },
    components: {
      FilterContainer: bar,
      DeepLink: ({ text }) => make("span", null, text),  // a link within a button cannot be reached
    },
    wrapComponents: {
      // A command is shown with a placeholder for the key, so that screenshots do not contain it.
      curl: (Original) => (props) => make(Original, {
        ...props,
        request: Object.entries(SECRETS).reduce((request, [name, shown]) =>
          request.hasIn(["headers", name]) ? request.setIn(["headers", name], shown) : request, props.request),
      }),
      Input: (Original) => (props) => make(Original, KEY_INPUTS.includes(props.id)
        ? { ...props, type: "password", autoComplete: "off", "aria-label": "Value: an API key" } : props),
      JsonSchema_string: labelled(),
      JsonSchema_boolean: labelled(),
      ExamplesSelect: labelled("Example"),
      TextArea: (Original) => (props) => make(Original, { "aria-label": "Body", ...props }),
      HighlightCode: (Original) => (props) =>
        make("div", { className: "code", role: "group", "aria-label": "Code", tabIndex: 0 }, make(Original, props)),
    },
  };
};

const ui = SwaggerUIBundle({
  dom_id: "#reference",
  url: "openapi.json",
  plugins: [plugin],
  filter: true,
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  persistAuthorization: false,
  syntaxHighlight: { theme: "tomorrow-night" },
  validatorUrl: null,
  onComplete: () => { document.title = ui.specSelectors.info().get("title"); },
});
