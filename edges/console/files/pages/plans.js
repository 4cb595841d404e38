// What the plans of a task have left, beside the answers that approved them, and their early end.

import { api, listIn, path } from "../api.js";
import { append, fill, h } from "../dom.js";
import { number } from "../format.js";
import { button, dialog, errorBox, field, notice, throttled, timeMark } from "../ui.js";

export class Plans {
  constructor(taskId) {
    this.taskId = taskId;
    this.views = new Map();
    this.read = throttled(2000, () => this.#read());
  }

  // The element of a plan, which follows what the plan counts.
  view(planId) {
    const element = h("div.plan");
    this.views.set(planId, element);
    this.read();
    return element;
  }

  changed() {
    if (this.views.size > 0) this.read();
  }

  async #read() {
    try {
      const plans = listIn(await api.get(path`/v1/tasks/${this.taskId}/plans`), "plans");
      for (const one of plans) if (this.views.has(one.plan.plan_id)) this.#show(one);
    } catch (error) {
      for (const element of this.views.values()) if (!element.hasChildNodes()) fill(element, errorBox(error, this.read));
    }
  }

  #show(one) {
    const element = this.views.get(one.plan.plan_id);
    const key = JSON.stringify(one);
    if (element.dataset.shown === key) return;
    element.dataset.shown = key;
    const { count, sum_of: sum, limit, ends_at: end } = one.plan;
    const left = one.calls_left ? `, ${number(one.calls_left)} left` : "";
    const amounts = sum ? ` · ${sum} ${one.total}${limit ? ` of ${limit}${left ? `, ${one.total_left} left` : ""}` : ""}` : "";
    const over = one.ended_early_at ? [" · ended by ", one.ended_by, " ", timeMark(one.ended_early_at), `: ${one.end_reason}`] : Date.parse(end) <= Date.now() ? " · its time is over" : null;
    fill(element, h("p.dim", `The plan has counted ${number(one.calls)} of ${number(count)} calls${left}${amounts}`, over));
    if (one.calls_left) append(element, [button("End the plan …", { needs: "APPROVE", onclick: () => this.#end(one) })]);
  }

  #end(one) {
    const reason = h("input", { name: "reason", maxlength: 1000, required: true, autocomplete: "off" });
    return dialog("End this plan?", {
      confirm: "End the plan",
      tone: "danger",
      build: (body) => append(body, [h("p", `No later call of ${one.plan.tool} runs by it: each waits for an approval again. Calls that it has counted go on.`), field("Reason", reason, "It is recorded.")]),
      submit: async () => {
        await api.post(path`/v1/tasks/${this.taskId}/plans/end`, { plan_id: one.plan.plan_id, reason: reason.value.trim() });
        notice("The plan has ended.");
        this.read();
      },
    });
  }
}
