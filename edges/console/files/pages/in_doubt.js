// The calls in doubt: each with what is known of it, the steps to find out, and its resolution.

import { allOf } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, keyed, setText } from "../dom.js";
import { count } from "../format.js";
import { errorBox, throttled } from "../ui.js";
import { doubtPanel } from "./resolve.js";

export default async function inDoubtPage(context) {
  const summary = h("span.dim");
  const message = h("div");
  const list = h("div.cards");
  const all = h("input", { type: "checkbox", id: "all-doubts" });
  fill(
    context.root,
    h("div.head", h("h1", "Calls in doubt"), summary, h("label.aside", all, " also those that cannot be resolved any more")),
    h("p.dim", "A call of the class UNSAFE started, and its outcome was lost. Tenure does not repeat it: a second time could do harm. Its task waits until a person finds out what happened."),
    message,
    list,
  );
  const load = throttled(1000, async () => {
    try {
      const calls = await allOf("/v1/calls-in-doubt", "calls", { all: all.checked ? "true" : "", page_size: 100 });
      if (!context.isCurrent()) return;
      fill(message, calls.length === 0 ? h("p.empty", "No call is in doubt.") : null);
      setText(summary, calls.length > 0 ? count(calls.length, "call") : "");
      keyed(list, calls, (call) => [call.task_id, call.call_id, call.call_attempt, call.runner_gone, call.resolvable].join(" "), (call) => h("article.card", doubtPanel(call, { onResolved: load })));
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });
  all.addEventListener("change", load);
  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  // The proof that a runner is gone comes without a change of the task.
  const timer = setInterval(load, 5000);
  context.onLeave(() => clearInterval(timer));
  load();
}
