// Who works: workers, their claims and leases, what waits in the queues, and the writes that the fences refused.

import { allOf, api, listIn, path } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, keyed, setText } from "../dom.js";
import { count, duration, epoch, number, shortId, words } from "../format.js";
import { button, dialog, errorBox, field, notice, row, table, throttled, timeMark } from "../ui.js";

export default async function workersPage(context) {
  const message = h("div");
  const summary = h("span.dim");
  const workers = section("Workers", "No worker has a session: queued tasks wait.", [
    { name: "Worker", cell: (one) => h("b", one.worker_id) },
    { name: "State", cell: (one) => (one.draining ? h("span.state.warn", "◐ draining") : h("span.state.ok", "● serving")) },
    { name: "Tasks", class: "num", cell: (one) => number(one.held_tasks) },
    { name: "Queues", cell: (one) => one.queues.join(", ") || "default" },
    { name: "Priorities", cell: (one) => one.priorities.map(words).join(", ") || "all" },
    { name: "Runs", cell: (one) => one.loops.join(", ") },
    { name: "Tenants", cell: (one) => one.tenants.join(", ") || "all" },
    { name: "Pool", cell: (one) => one.pool },
    { name: "Since", cell: (one) => timeMark(one.started_at) },
    { name: "", cell: (one) => button("Drain …", { needs: "OPERATE", why: one.draining ? "It drains already." : "", onclick: () => drain(one, load) }) },
  ]);
  const queues = section("Queues", "Nothing is queued.", [
    { name: "Queue", cell: (one) => h("b", one.queue) },
    { name: "Priority", cell: (one) => words(one.priority) },
    { name: "Queued", class: "num", cell: (one) => number(one.queued) },
    { name: "Held back", class: "num", cell: (one) => number(one.held_back) },
    { name: "Stopped", class: "num", cell: (one) => number(one.stopped) },
    { name: "Oldest", cell: (one) => timeMark(one.oldest_queued_at) },
  ]);
  const claims = section("Claims", "No worker holds a task.", [
    { name: "Task", cell: (one) => taskLink(one.task_id) },
    { name: "Worker", cell: (one) => one.worker },
    { name: "Epoch", cell: (one) => h("span.epoch", { title: one.previous_epoch ? `The previous one was ${epoch(one.previous_epoch)}` : "The first one" }, epoch(one.epoch)) },
    { name: "Why", cell: (one) => words(one.reason) },
    { name: "Lease", class: "num", cell: (one) => h(one.remaining_seconds < 2 ? "span.warn" : "span", `${duration(Math.max(0, one.remaining_seconds))} left`) },
    { name: "Renewals", class: "num", cell: (one) => (one.renewals ? number(one.renewals.count) : "–") },
    { name: "Last renewal", cell: (one) => timeMark(one.renewals?.last_at) },
  ]);
  const leases = section("Named leases", "No named lease is held.", [
    { name: "Resource", cell: (one) => h("b", one.resource) },
    { name: "Holder", cell: (one) => one.holder },
    { name: "Epoch", cell: (one) => epoch(one.epoch) },
    { name: "Left", class: "num", cell: (one) => duration(Math.max(0, one.remaining_seconds)) },
    { name: "Since", cell: (one) => timeMark(one.acquired_at) },
  ]);
  const refusals = section("Refused writes", "No write was refused to the tasks that are claimed now.", [
    { name: "When", cell: (one) => timeMark(one.refused_at) },
    { name: "Task", cell: (one) => taskLink(one.task_id) },
    { name: "Refused by", cell: (one) => (one.fence === "tools" ? "the tool service" : "the ledger") },
    { name: "Worker", cell: (one) => one.worker },
    { name: "Call", cell: (one) => one.method },
    { name: "Its epoch", cell: (one) => epoch(one.presented_epoch) },
    { name: "The fence", cell: (one) => epoch(one.current_epoch) },
  ]);
  fill(context.root, h("div.head", h("h1", "Workers"), summary), message, workers.element, queues.element, claims.element, leases.element, refusals.element);

  const load = throttled(2000, async () => {
    try {
      const [all, queued, claimed, leased] = await Promise.all([allOf("/v1/workers", "workers"), api.get("/v1/queues"), api.get("/v1/claims"), allOf("/v1/leases", "leases").catch(() => [])]);
      if (!context.isCurrent()) return;
      fill(message);
      workers.show(all, (one) => JSON.stringify([one.worker_id, one.draining, one.held_tasks, one.started_at]));
      queues.show(listIn(queued, "queues"), (one) => JSON.stringify(one));
      const held = listIn(claimed, "claims");
      claims.show(held, (one) => JSON.stringify(one));
      leases.show(leased, (one) => JSON.stringify(one));
      const waiting = listIn(queued, "queues").reduce((sum, one) => sum + one.queued, 0);
      setText(summary, `${count(all.length, "worker")}, ${count(held.length, "claim")}, ${count(waiting, "queued task")}`);
      await readRefusals(held);
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });

  // A refused write is listed by task: those that were taken over may have some.
  async function readRefusals(held) {
    const takenOver = held.filter((one) => one.previous_epoch).slice(0, 20);
    const pages = await Promise.all(takenOver.map((one) => api.get(path`/v1/tasks/${one.task_id}/refusals`).catch(() => ({ refusals: [] }))));
    if (!context.isCurrent()) return;
    const rows = pages.flatMap((page) => listIn(page, "refusals")).sort((one, other) => (one.refused_at < other.refused_at ? 1 : -1));
    refusals.show(rows.slice(0, 100), (one) => JSON.stringify(one));
  }

  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  const timer = setInterval(load, 3000);
  context.onLeave(() => clearInterval(timer));
  load();
}

export const taskLink = (id) => h("a", { href: `#/tasks/${encodeURIComponent(id)}`, "data-row": true, title: id }, shortId(id));

// A heading, and a table or the sentence for none.
export function section(name, none, columns) {
  const { element: rows, body } = table(name, columns);
  const empty = h("p.empty.small", none);
  const number = h("span.dim");
  const element = h("section", h("div.head", h("h2", name), number), rows, empty);
  const show = (items, keyOf, isPart = false) => {
    rows.hidden = items.length === 0;
    empty.hidden = items.length > 0;
    setText(number, items.length > 0 ? `${isPart ? "the newest " : ""}${items.length}` : "");
    keyed(body, items, keyOf, (item) => row(columns, item));
  };
  show([], () => "");
  empty.hidden = true;
  return { element, show };
}

function drain(worker, load) {
  const held = worker.held_tasks === 0 ? "It holds no task." : `It gives back ${count(worker.held_tasks, "task")}, which other workers continue from the last commit.`;
  const reason = h("input", { name: "reason", maxlength: 1000, required: true, autocomplete: "off" });
  return dialog(`Drain ${worker.worker_id}?`, {
    confirm: "Drain",
    tone: "danger",
    build: (body) => body.append(h("p", held), h("p", "It takes no more tasks until it is restarted. A model call in flight stops and is billed for what it said so far; tool calls go on, and the next owner joins them."), field("Reason", reason, "The audit log records it.")),
    submit: async () => {
      await api.post(path`/v1/workers/${worker.worker_id}/drain`, { reason: reason.value.trim() });
      notice(`${worker.worker_id} drains.`);
      load();
    },
  });
}
