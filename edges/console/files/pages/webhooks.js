// Webhooks and their deliveries: what was sent, what waits, what is dead, and how to send it again.

import { allOf, api, listIn, path } from "../api.js";
import { subscribe } from "../changes.js";
import { append, fill, h } from "../dom.js";
import { count, number, oneLine, shortId, words } from "../format.js";
import { button, changing, dialog, errorBox, every, facts, field, notice, throttled, timeMark } from "../ui.js";
import { pause } from "./schedules.js";
import { labelsIn } from "./task_form.js";
import { section } from "./workers.js";

export default async function webhooksPage(context) {
  return context.parts[0] ? one(context, context.parts[0]) : all(context);
}

const state = (webhook) => (webhook.paused ? h("span.state.warn", "‖ paused") : webhook.problem ? h("span.state.bad", "✗ failing") : h("span.state.ok", "● active"));
const events = (webhook) => webhook.event_types.join(", ") || "ends, waits and warnings";
const where = (webhook) => webhook.url || webhook.email_addresses.join(", ") || "–";

async function all(context) {
  const message = h("div");
  const list = section("All webhooks", "There is no webhook.", [
    { name: "Name", cell: (one) => h("a", { href: `#/webhooks/${encodeURIComponent(one.webhook_id)}`, "data-row": true }, one.name) },
    { name: "State", cell: state },
    { name: "Kind", cell: (one) => words(one.kind) },
    { name: "Sends to", class: "wrap", cell: (one) => oneLine(where(one), 80) },
    { name: "Events", class: "wrap", cell: events },
    { name: "Delivered", class: "num", cell: (one) => number(one.delivered) },
    { name: "Pending", class: "num", cell: (one) => number(one.pending_deliveries) },
    { name: "Dead", class: "num", cell: (one) => (one.dead_deliveries ? h("span.bad", number(one.dead_deliveries)) : "0") },
    { name: "Last delivered", cell: (one) => timeMark(one.last_delivered_at) },
  ]);
  fill(context.root, h("div.head", h("h1", "Webhooks"), h("span.buttons", button("Create a webhook …", { needs: "TENANT_ADMIN", tone: "primary", onclick: () => create(load) }))), message, list.element);
  const load = throttled(2000, async () => {
    try {
      const webhooks = await allOf("/v1/webhooks", "webhooks", { page_size: 100 });
      if (!context.isCurrent()) return;
      fill(message);
      list.show(webhooks, (one) => JSON.stringify(one));
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });
  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  context.onLeave(every(5000, load)); // a pause, for one, changes no task
  load();
}

function create(load) {
  const line = (name, attributes = {}) => h("input", { name, autocomplete: "off", ...attributes });
  const [name, url, emails, types, queue, labels, root] = [line("name", { required: true }), line("url", { type: "url" }), line("email_addresses"), line("event_types", { placeholder: "task.failed, task.waiting_user" }), line("queue"), line("labels", { placeholder: "team=growth" }), line("root_task_id")];
  const kind = h("select", { name: "kind" }, [["STANDARD", "signed requests to a program"], ["SLACK", "messages to Slack"], ["EMAIL", "e-mail"]].map(([value, does]) => h("option", { value }, does)));
  const links = h("input", { name: "answer_links", type: "checkbox" });
  const target = [field("URL", url), field("E-mail addresses", emails, "With commas between them.")];
  const choose = () => target.forEach((element, at) => (element.hidden = (kind.value === "EMAIL") !== (at === 1)));
  kind.addEventListener("change", choose);
  choose();
  const list = (input) => input.value.split(",").map((one) => one.trim()).filter(Boolean);
  let secret = "";
  return dialog("Create a webhook", {
    confirm: "Create",
    build: (body) =>
      append(body, [
        field("Name", name),
        field("It sends", kind),
        target,
        field("Events", types, "Empty: ends, waits and warnings."),
        field("Only the queue", queue),
        field("Only the labels", labels),
        field("Only the tree of the task", root, "The whole id of its root."),
        h("label.choice", links, " Messages have links that answer waits: who reads them can answer"),
      ]),
    submit: async () => {
      const isEmail = kind.value === "EMAIL";
      const filter = { queue: queue.value.trim(), label: labelsIn(labels.value), root_task_id: root.value.trim() };
      const made = await api.post("/v1/webhooks", { name: name.value.trim(), kind: kind.value, ...(isEmail ? { email_addresses: list(emails) } : { url: url.value.trim() }), event_types: list(types), filter, answer_links: links.checked });
      secret = made.secret;
    },
  }).then(() => {
    load();
    if (secret) dialog("The secret of the webhook", { cancel: "Close", build: (body) => append(body, [h("p", "The receiver verifies the signatures with it. It is shown this once."), h("pre", secret)]) });
  });
}

async function one(context, id) {
  const message = h("div");
  const about = h("div");
  const route = path`/v1/webhooks/${id}`;
  const deliveries = section("Deliveries", "Nothing was to be sent yet.", [
    { name: "Made", cell: (one) => timeMark(one.created_at) },
    { name: "State", cell: (one) => h(`span.state.${{ DELIVERED: "ok", DEAD: "bad" }[one.state] ?? "warn"}`, words(one.state)) },
    { name: "Event", cell: (one) => one.event_type },
    { name: "Task", cell: (one) => (one.task_id ? h("a", { href: `#/tasks/${encodeURIComponent(one.task_id)}`, "data-row": true }, shortId(one.task_id)) : "–") },
    { name: "Attempts", class: "num", cell: (one) => number(one.attempts) },
    { name: "Answer", cell: (one) => (one.last_status_code ? String(one.last_status_code) : "") },
    { name: "Next attempt", cell: (one) => timeMark(one.state === "PENDING" ? one.next_attempt_at : null) },
    { name: "What went wrong", class: "wrap", cell: (one) => oneLine(one.last_error || one.hold_reason, 160) },
    { name: "", cell: (one) => (one.state === "DEAD" ? replay(route, one.delivery_id, "Send again", load) : null) },
  ]);
  fill(context.root, h("p.back", h("a", { href: "#/webhooks" }, "Webhooks")), message, about, deliveries.element);
  const load = throttled(1500, async () => {
    try {
      const [webhook, listed] = await Promise.all([api.get(route), api.get(`${route}/deliveries`, { page_size: 100 })]);
      if (!context.isCurrent()) return;
      context.title(webhook.name);
      fill(message);
      fill(about, h("div.head", h("h1", webhook.name), state(webhook), buttons(webhook, route, load)), details(webhook));
      deliveries.show(listIn(listed, "deliveries"), (one) => JSON.stringify(one), Boolean(listed.next_page_token));
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });
  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  context.onLeave(every(5000, load));
  load();
}

function details(webhook) {
  const { label, ...others } = webhook.filter;
  const given = Object.entries(others).filter(([, value]) => value !== null && value.length !== 0);
  const only = [...Object.entries(label).map(([name, value]) => `${name}=${value}`), ...given.map(([name, value]) => `${words(name)} ${[value].flat().join(" or ")}`)].join("; ");
  return facts(
    webhook.problem ? ["Problem", h("span.bad", webhook.problem)] : null,
    webhook.paused ? ["Paused by", webhook.paused_by || words(webhook.pause_code), webhook.pause_reason ? `: ${webhook.pause_reason}` : ""] : null,
    ["Sends to", h("code", where(webhook)), ` (${words(webhook.kind)})`],
    ["Events", events(webhook)],
    ["Only", only || "no filter"],
    ["Deliveries", `${number(webhook.delivered)} delivered, ${number(webhook.pending_deliveries)} pending, ${number(webhook.dead_deliveries)} dead`],
    ["Last delivered", timeMark(webhook.last_delivered_at)],
    ["Last failure", timeMark(webhook.last_failed_at)],
    webhook.gaps.length > 0 ? ["Missed", webhook.gaps.map((gap) => h("p", `${words(gap.reason)}: `, timeMark(gap.from_at), " to ", timeMark(gap.to_at)))] : null,
  );
}

function buttons(webhook, route, load) {
  const toggle = webhook.paused
    ? button("Resume", {
        needs: "TENANT_ADMIN",
        tone: "primary",
        onclick: () =>
          changing(toggle, async () => {
            await api.post(`${route}/resume`);
            notice(`${webhook.name} is active again.`);
            load();
          }),
      })
    : button("Pause …", { needs: "TENANT_ADMIN", onclick: () => pause(webhook, "webhooks", "Deliveries wait until it is resumed.", load) });
  return h("span.buttons", toggle, webhook.dead_deliveries > 0 && replay(route, "", `Send ${count(webhook.dead_deliveries, "dead delivery", "dead deliveries")} again`, load));
}

function replay(route, deliveryId, label, load) {
  const element = button(label, {
    needs: "TENANT_ADMIN",
    onclick: () =>
      changing(element, async () => {
        const done = await api.post(`${route}/replay`, deliveryId ? { delivery_id: deliveryId } : {});
        notice(`${count(done.replayed ?? 1, "delivery is", "deliveries are")} sent again.`);
        load();
      }),
  });
  return element;
}
