// The inbox: what waits for a person, the most urgent first. An answer of anybody removes it here.

import { api, listIn } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, keyed, setText } from "../dom.js";
import { count, money, moneyExact, oneLine, shortId } from "../format.js";
import { announce, errorBox, throttled, timeMark } from "../ui.js";
import { waitPanel } from "./answer.js";
import { title } from "./tasks.js";

export default async function approvalsPage(context) {
  const summary = h("span.dim");
  const message = h("div");
  const list = h("div.cards");
  fill(context.root, h("div.head", h("h1", "Approvals"), summary), h("p.dim", "Tasks that wait for a person, the earliest deadline first. A wait takes one answer."), message, list);
  let shown = new Set();

  const load = throttled(500, async () => {
    try {
      const answer = await api.get("/v1/waits", { page_size: 100 });
      if (!context.isCurrent()) return;
      const tasks = listIn(answer, "tasks").filter((task) => task.wait);
      const now = new Set(tasks.map((task) => task.wait.wait_id + task.task_id));
      const added = [...now].filter((key) => !shown.has(key)).length;
      const gone = [...shown].filter((key) => !now.has(key)).length;
      if (shown.size > 0 && added > 0) announce(`${count(added, "new wait")}`);
      if (gone > 0) announce(`${count(gone, "wait")} answered`);
      shown = now;
      fill(message, tasks.length === 0 ? h("p.empty", "Nothing waits for a person.") : answer.next_page_token ? h("p.dim", "The 100 most urgent are shown.") : null);
      setText(summary, tasks.length > 0 ? `${answer.next_page_token ? "more than " : ""}${count(tasks.length, "task waits", "tasks wait")} for a person` : "");
      keyed(list, tasks, (task) => `${task.task_id} ${task.wait.wait_id} ${task.wait.assignee}`, (task) => card(task, load));
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });
  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  load();
}

function card(task, onAnswered) {
  const used = h("span", { title: moneyExact(task.budget.used_cost_usd) }, `${money(task.budget.used_cost_usd)} so far`);
  return h(
    "article.card",
    h(
      "div.card-head",
      h("a.goal", { href: `#/tasks/${encodeURIComponent(task.task_id)}`, "data-row": true }, oneLine(title(task), 160)),
      h("span.dim", ` ${shortId(task.task_id)} · step ${task.step} · `, used, " · submitted ", timeMark(task.created_at)),
    ),
    waitPanel(task, { onAnswered }),
  );
}
