// The form of a task to submit: to start one, to run one again with other values, and what a schedule submits.

import { api, requestId } from "../api.js";
import { append, h } from "../dom.js";
import { pretty } from "../format.js";
import { parse } from "../json.js";
import { dialog, field } from "../ui.js";

const AGENT = "A registered agent or one in Python, by its name or a revision: support@7. It has its own model, system prompt and tools.";
// The fields, one a row: its name in the body, its label, its kind, whether it is among the rarer ones, a help.
const FIELDS = [
  ["goal", "Goal", "text", false, ""],
  ["agent", "Agent", "line", false, AGENT],
  ["function", "Function", "line", false, "An agent in Python or a control function, by its name or a revision."],
  ["model", "Model", "line", false, "Empty: the installation's default."],
  ["labels", "Labels", "labels", false, "team=growth, ticket=4711"],
  ["queue", "Queue", "line", false, ""],
  ["max_cost", "Most US dollars", "number", false, "Empty: the default cap."],
  ["max_tokens", "Most tokens", "number", false, ""],
  ["input", "Input", "json", true, "JSON, for an agent in Python."],
  ["system", "System prompt", "text", true, ""],
  ["tools", "Tools", "list", true, "Their names. Empty: all of the tenant's."],
  ["approve_tools", "Tools that need approval", "list", true, ""],
  ["result", "Schema of the result", "json", true, "A JSON Schema. Empty: any text."],
  ["max_steps", "Most steps", "number", true, ""],
  ["timeout", "Most seconds", "number", true, ""],
];
// What the agent or the function has of its own.
const OF_AGENT = ["function", "model", "system", "tools", "result"];
const OF_FUNCTION = ["agent", "model", "system", "tools", "approve_tools", "result"];

const KINDS = {
  line: [(value) => value, (text) => text.trim()],
  text: [(value) => value, (text) => (text.trim() ? text : "")],
  number: [String, Number],
  list: [(value) => value.join(", "), (text) => text.split(",").map((one) => one.trim()).filter(Boolean)],
  labels: [(value) => Object.entries(value).map((pair) => pair.join("=")).join(", "), labelsIn],
  json: [pretty, (text, label) => jsonIn(text, label)],
};

export function labelsIn(text) {
  const pairs = text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => one.split("="));
  const bad = pairs.find(([name, ...rest]) => !name || rest.length === 0);
  if (bad) throw new Error(`A label is name=value, not ${bad.join("=")}.`);
  return Object.fromEntries(pairs.map(([name, ...rest]) => [name, rest.join("=")]));
}

function jsonIn(text, label) {
  try {
    return parse(text);
  } catch {
    throw new Error(`${label}: that is not valid JSON.`);
  }
}

// Adds the fields to a dialog. Returns the function that reads them: the body of a submit. Throws for one that is misread.
export function taskFields(body, values = {}) {
  const hidden = values.function ? OF_FUNCTION : values.agent ? OF_AGENT : ["function"];
  const shown = FIELDS.filter(([name]) => !hidden.includes(name));
  const controls = shown.map(([name, , kind]) => {
    const value = values[name] ?? null;
    const given = value === null ? "" : KINDS[kind][0](value);
    const isLong = ["text", "json"].includes(kind);
    return isLong ? h("textarea", { name, rows: name === "goal" ? 4 : 3, class: kind === "json" ? "code" : null, value: given }) : h("input", { name, value: given, autocomplete: "off", ...(kind === "number" && { type: "number", min: 0, step: "any" }) });
  });
  const elements = shown.map(([, label, , isRare, help], at) => [isRare, field(label, controls[at], help)]);
  const rare = elements.filter(([isRare]) => isRare).map(([, element]) => element);
  append(body, [elements.filter(([isRare]) => !isRare).map(([, element]) => element), h("details", { open: values.input !== undefined || values.system ? true : null }, h("summary", "More"), rare)]);
  return () => {
    const read = { ...values.kept };
    shown.forEach(([name, label, kind], at) => {
      if (controls[at].value.trim()) read[name] = KINDS[kind][1](controls[at].value, label);
    });
    return read;
  };
}

// Asks for a task, submits it and goes to its page.
export function startTask(title, values = {}, note = "") {
  const once = requestId();
  let read;
  return dialog(title, {
    confirm: "Start",
    build: (body) => {
      if (note) body.append(h("p", note));
      read = taskFields(body, values);
    },
    submit: async () => {
      const task = await api.post("/v1/tasks", read(), { headers: { "Idempotency-Key": once } });
      location.hash = `#/tasks/${encodeURIComponent(task.task_id)}`;
    },
  });
}
