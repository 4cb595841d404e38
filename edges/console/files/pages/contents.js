// What a model and a tool said to each other, so that people can read it: programs with their lines, JSON with its levels.

import { api, path } from "../api.js";
import { append, fill, h } from "../dom.js";
import { count, pretty } from "../format.js";
import { parse } from "../json.js";
import { dialog, errorText, longText } from "../ui.js";

const LIMIT = 4000;

// The arguments that are texts of several lines, such as programs: their names and texts.
export function textsIn(value) {
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
  return (isObject ? Object.entries(value) : []).filter(([, one]) => typeof one === "string" && one.includes("\n"));
}

// The arguments of a call. A text of several lines stands by itself.
export function argumentsView(value) {
  const texts = textsIn(value);
  if (texts.length === 0) return longText(pretty(value), LIMIT);
  const names = new Set(texts.map(([name]) => name));
  const rest = Object.entries(value).filter(([name]) => !names.has(name));
  return [rest.length > 0 ? longText(pretty(Object.fromEntries(rest)), LIMIT) : null, texts.map(([name, text]) => [h("p.dim", name), longText(text, LIMIT)])];
}

// The output of a call: JSON in one line gets its levels.
export function outputView(text) {
  if (!text) return h("p.dim", "(empty)");
  if (/^\s*[[{]/.test(text)) {
    try {
      return longText(pretty(parse(text)), LIMIT);
    } catch {
      // It only begins like JSON.
    }
  }
  return longText(text, LIMIT);
}

// What the model read at a step.
export function showPrompt(taskId, step) {
  return dialog(`What the model read at step ${step}`, {
    cancel: "Close",
    wide: true,
    build: async (body) => {
      const loading = h("p.dim", "Loading …");
      body.append(loading);
      try {
        const prompt = await api.get(path`/v1/tasks/${taskId}/prompt`, { step });
        loading.remove();
        append(body, [
          h("p.dim", [prompt.model, count(prompt.messages.length, "message")].join(" · ")),
          prompt.system ? h("details.message", h("summary", h("b", "System prompt")), longText(prompt.system, LIMIT)) : null,
          prompt.tools.length > 0 ? h("details.message", h("summary", h("b", count(prompt.tools.length, "tool"))), h("p", prompt.tools.join(", "))) : null,
          prompt.messages.map((message) => h("section.message", h("h3", message.role), message.parts.map(part))),
        ]);
      } catch (error) {
        fill(body, h("p.error", errorText(error)));
      }
    },
  });
}

function part(one) {
  if (one.kind === "text") return longText(one.text, LIMIT);
  if (one.kind === "tool_call") return h("div", h("p", "calls ", h("b", one.tool)), argumentsView(one.arguments));
  if (one.kind === "tool_result") return h("div", h("p", { class: one.is_error ? "bad" : "dim" }, one.is_error ? "error of a call" : "result of a call"), outputView(one.text));
  return h("p.dim", `${one.kind} ${one.text}`);
}
