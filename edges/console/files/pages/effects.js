// What touched an effect: all calls with an effect key, such as those that refund one order, over all tasks.

import { api, currentTenant, listIn, path, url } from "../api.js";
import { fill, h } from "../dom.js";
import { argumentsLine, epoch, words } from "../format.js";
import { stringify } from "../json.js";
import { errorBox, timeMark } from "../ui.js";
import { section, taskLink } from "./workers.js";

const MOST_ARGUMENTS = 4; // Of a search.
const FACTS = { HAPPENED: "ok", UNKNOWN: "warn", RUNNING: "run", NONE: "dim" };

// The address of the effects that a call with these arguments touches; "" if the tool has no effect key.
export function effectsAddress(definition, given) {
  const pairs = (definition?.effect_key?.arguments ?? []).map((pointer) => [pointer, at(given, pointer)]).filter(([, value]) => value !== undefined);
  if (pairs.length === 0) return "";
  const key = pairs.slice(0, MOST_ARGUMENTS).map(([pointer, value]) => `${pointer}=${typeof value === "string" ? value : stringify(value)}`);
  return url("#/effects", { tool: definition.name, key });
}

// The value at a JSON pointer; undefined: there is none.
function at(value, pointer) {
  const names = pointer.split("/").slice(1).map((name) => name.replaceAll("~1", "/").replaceAll("~0", "~"));
  return names.reduce((inner, name) => (inner !== null && typeof inner === "object" && Object.hasOwn(inner, name) ? inner[name] : undefined), value);
}

export default async function effectsPage(context) {
  const tool = h("input", { type: "search", "data-search": true, placeholder: "tool  ( / )", "aria-label": "Tool", value: context.query.get("tool") ?? "" });
  const filters = h("div.filters", { role: "search" }, tool);
  const keys = [];
  const message = h("div");
  const list = section("Calls", "No call has such an effect key.", [
    { name: "Accepted", cell: (one) => timeMark(one.accepted_at) },
    { name: "Tool", cell: (one) => h("b", one.tool) },
    { name: "Key", class: "wrap", cell: (one) => h("code", argumentsLine(one.key)) },
    { name: "Task", cell: (one) => taskLink(one.task_id) },
    { name: "Call", cell: (one) => `${one.call_id}${one.call_attempt > 1 ? `, attempt ${one.call_attempt}` : ""}` },
    { name: "Outcome", cell: (one) => [words(one.status || one.state || "deleted"), one.detail && h("span.dim", ` ${words(one.detail)}`)] },
    { name: "Effect", cell: (one) => h(`span.state.${FACTS[one.fact] ?? "dim"}`, words(one.fact)) },
    { name: "Epoch", cell: (one) => h("span.epoch", epoch(one.epoch)) },
    { name: "Idempotency key", class: "wrap", cell: (one) => one.idempotency_key },
    { name: "", cell: (one) => receiptLink(one) },
  ]);
  let token = "";
  let calls = [];
  const more = h("button", { type: "button", hidden: true, onclick: () => load(true) }, "Show later calls");
  fill(context.root, h("h1", "Effects"), h("p.dim", "The calls with an effect key, over all tasks, in the order of their acceptance. A call whose effect another one had made did nothing: already happened."), filters, message, list.element, more);

  function addKey(value = "") {
    const input = h("input", { type: "search", placeholder: "order=7", "aria-label": "Argument of the key", value });
    input.addEventListener("change", () => load());
    keys.push(input);
    filters.append(input);
  }

  async function load(later = false) {
    try {
      const pairs = keys.map((input) => input.value.trim()).filter(Boolean);
      if (pairs.length === keys.length && pairs.length < MOST_ARGUMENTS) addKey();
      const wrong = pairs.find((pair) => pair.indexOf("=") < 1);
      if (wrong !== undefined) throw new Error(`${wrong}: write an argument and its value, as in order=7.`);
      const name = tool.value.trim();
      context.setQuery(new URLSearchParams([...(name ? [["tool", name]] : []), ...pairs.map((pair) => ["key", pair])]));
      const page = await api.get("/v1/effects", { tool: name, key: pairs.map((pair) => pair.replace("=", ":")), page_size: 100, page_token: later ? token : "" });
      if (!context.isCurrent()) return;
      calls = [...(later ? calls : []), ...listIn(page, "effects")];
      token = page.next_page_token ?? "";
      more.hidden = !token;
      fill(message);
      list.show(calls, (one) => stringify(one));
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, () => load()));
    }
  }
  tool.addEventListener("change", () => load());
  for (const pair of context.query.getAll("key")) addKey(pair);
  await load();
}

function receiptLink(call) {
  if (call.state !== "FINISHED") return null;
  const query = { call_id: call.call_id, tenant: currentTenant() };
  return h("a", { href: url(path`/v1/tasks/${call.task_id}/receipts`, query), download: `receipt-${call.call_id}.jsonl`, title: "The signed receipt of the call" }, "Receipt");
}
