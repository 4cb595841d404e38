// The audit log: administrative acts and refused calls, the newest first.

import { api, listIn } from "../api.js";
import { fill, h } from "../dom.js";
import { number } from "../format.js";
import { errorBox, timeMark } from "../ui.js";
import { section } from "./workers.js";

export default async function auditPage(context) {
  const fields = {
    subject: h("input", { type: "search", "data-search": true, placeholder: "caller  ( / )", "aria-label": "Caller", value: context.query.get("subject") ?? "" }),
    method: h("input", { type: "search", placeholder: "AdminService/DrainWorker", "aria-label": "Method", value: context.query.get("method") ?? "", size: 28 }),
    of_tenant: h("input", { type: "search", placeholder: "tenant", "aria-label": "Of the tenant", value: context.query.get("of_tenant") ?? "", size: 12 }),
    decision: h("select", { "aria-label": "Decision" }, [["", "allowed and denied"], ["ALLOWED", "allowed"], ["DENIED", "denied"]].map(([value, name]) => h("option", { value }, name))),
  };
  fields.decision.value = context.query.get("decision") ?? "";
  const message = h("div");
  const list = section("Records", "No record matches.", [
    { name: "№", class: "num", cell: (one) => number(one.number) },
    { name: "When", cell: (one) => timeMark(one.recorded_at) },
    { name: "Decision", cell: (one) => h(`span.state.${one.decision === "DENIED" ? "bad" : "ok"}`, one.decision === "DENIED" ? "✗ denied" : "✓ allowed") },
    { name: "Who", cell: (one) => [h("b", one.subject || "–"), one.count > 1 ? h("span.dim", ` ${number(one.count)} times`) : null] },
    { name: "From", cell: (one) => h("span", { title: one.peer }, one.peer.replace(/^ipv[46]:/, "")) },
    { name: "Method", cell: (one) => one.method },
    { name: "Target", class: "wrap", cell: (one) => one.target },
    { name: "Tenant", cell: (one) => one.tenant },
    { name: "Why", class: "wrap", cell: (one) => one.reason },
  ]);
  let token = "";
  let records = [];
  const more = h("button", { type: "button", hidden: true, onclick: () => load(true) }, "Show older records");
  fill(context.root, h("h1", "Audit log"), h("p.dim", "Administrative acts and refused calls, in a hash chain: ", h("code", "tenure admin audit verify"), " checks it."), h("div.filters", { role: "search" }, fields.subject, fields.method, fields.of_tenant, fields.decision), message, list.element, more);

  async function load(older = false) {
    try {
      const query = Object.fromEntries(Object.entries(fields).map(([name, element]) => [name, element.value.trim()]));
      context.setQuery(new URLSearchParams(Object.entries(query).filter(([, value]) => value)));
      const page = await api.get("/v1/audit", { ...query, page_size: 100, page_token: older ? token : "" });
      if (!context.isCurrent()) return;
      records = [...(older ? records : []), ...listIn(page, "records")];
      token = page.next_page_token ?? "";
      more.hidden = !token;
      fill(message);
      list.show(records, (one) => one.number);
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, () => load()));
    }
  }
  for (const element of Object.values(fields)) element.addEventListener("change", () => load());
  await load();
}
