// What has waited long, makes no progress, or may soon be taken over: aged work, and leases near their end.

import { api, listIn } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, setText } from "../dom.js";
import { count, duration, number, words } from "../format.js";
import { errorBox, may, throttled, timeMark } from "../ui.js";
import { section, taskLink } from "./workers.js";

const IDLE_SECONDS = 60;
const LEASE_BELOW_SECONDS = 2;
const MOST = 100;

export default async function agingPage(context) {
  const message = h("div");
  const summary = h("span.dim");
  const leases = section("Leases near their end", `Every held task has a lease of at least ${LEASE_BELOW_SECONDS} s.`, [
    ...task(),
    { name: "Worker", cell: (one) => one.worker },
    { name: "Lease", class: "num", cell: (one) => h("span.warn", one.remaining_seconds === null ? "gone" : `${duration(Math.max(0, one.remaining_seconds))} left`) },
    { name: "Step", class: "num", cell: (one) => number(one.step) },
  ]);
  const idle = section("Held without a commit for a minute", "Every held task has committed something in the last minute.", [
    ...task(),
    { name: "Worker", cell: (one) => one.worker },
    { name: "Last commit", cell: (one) => timeMark(one.updated_at) },
    { name: "Step", class: "num", cell: (one) => number(one.step) },
    { name: "Queue", cell: (one) => one.queue },
  ]);
  const queues = section("Oldest queued task by queue and priority", "Nothing is queued.", [
    { name: "Oldest", cell: (one) => timeMark(one.oldest_queued_at) },
    { name: "Queue", cell: (one) => h("b", one.queue) },
    { name: "Priority", cell: (one) => words(one.priority) },
    { name: "Queued", class: "num", cell: (one) => number(one.queued) },
    { name: "Held back", class: "num", cell: (one) => number(one.held_back) },
  ]);
  const oldest = section("Oldest tasks", "No task lives.", [
    ...task(),
    { name: "State", cell: (one) => [words(one.state), h("span.dim", ` ${words(one.reason)}`)] },
    { name: "Submitted", cell: (one) => timeMark(one.created_at) },
    { name: "Changed", cell: (one) => timeMark(one.updated_at) },
    { name: "Deadline", cell: (one) => timeMark(one.deadline_at) },
    { name: "Queue", cell: (one) => one.queue },
  ]);
  queues.element.hidden = !may("OPERATE");
  fill(context.root, h("div.head", h("h1", "Aging"), summary), message, leases.element, idle.element, queues.element, oldest.element);

  const load = throttled(2000, async () => {
    try {
      const [ending, still, old, queued] = await Promise.all([
        aged({ view: "HELD", lease_below_seconds: LEASE_BELOW_SECONDS }),
        aged({ view: "HELD", idle_seconds: IDLE_SECONDS }),
        aged({ view: "OLDEST" }),
        may("OPERATE") ? api.get("/v1/queues").then((page) => listIn(page, "queues")) : [],
      ]);
      if (!context.isCurrent()) return;
      fill(message);
      leases.show(ending, JSON.stringify);
      idle.show(still.sort((one, other) => earlier(one.updated_at, other.updated_at)), JSON.stringify);
      queues.show(queued.sort((one, other) => earlier(one.oldest_queued_at ?? "~", other.oldest_queued_at ?? "~")), JSON.stringify);
      oldest.show(old, JSON.stringify, old.length === MOST);
      setText(summary, `${count(ending.length, "lease")} near the end, ${count(still.length, "idle task")}`);
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });

  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  const timer = setInterval(load, 3000);
  context.onLeave(() => clearInterval(timer));
  load();
}

const task = () => [{ name: "Task", cell: (one) => taskLink(one.task_id) }];
const aged = async (query) => listIn(await api.get("/v1/aging", { ...query, page_size: MOST }), "tasks");
const earlier = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
