// What a person can do to one task.

import { api, listIn, path, requestId } from "../api.js";
import { append, h } from "../dom.js";
import { isEnded } from "../states.js";
import { button, dialog, field, notice } from "../ui.js";
import { noReader, valuesOf } from "./agents.js";
import { startTask } from "./task_form.js";

// `definition`: of what runs the task.
export function actionButtons(task, definition, refresh) {
  const over = isEnded(task.state) ? "The task has ended." : "";
  const again = () => startTask("Run again", valuesOf(task, definition), "A new task, with these values. Files that were submitted are not copied.");
  return [
    button("Run again …", { needs: "WRITE", onclick: again }),
    button("Fork …", { needs: "WRITE", onclick: () => fork(task, definition) }),
    over && task.state !== "SUCCEEDED"
      ? button("Requeue …", { needs: "TENANT_ADMIN", onclick: () => requeue(task, refresh) })
      : button("Message …", { needs: "WRITE", why: over || noReader(task, definition), onclick: () => message(task, refresh) }),
    button("Cancel …", { needs: "WRITE", tone: "danger", why: over || (task.cancel_requested ? "An end is already requested." : ""), onclick: () => cancel(task, refresh) }),
  ];
}

function cancel(task, refresh) {
  const reason = h("input", { name: "reason", maxlength: 1000, autocomplete: "off" });
  return dialog("Cancel this task?", {
    confirm: "Cancel the task",
    cancel: "Keep it",
    tone: "danger",
    build: (body) => body.append(h("p", "The model call in flight stops and is billed for what it said so far. The task ends as CANCELLED, with its sub-agents. Effects that happened stay."), field("Reason", reason, "It is recorded.")),
    submit: async () => {
      await api.post(path`/v1/tasks/${task.task_id}/cancel`, reason.value.trim() ? { reason: reason.value.trim() } : {});
      notice("The cancel is recorded.");
      refresh();
    },
  });
}

function message(task, refresh) {
  const text = h("textarea", { name: "text", rows: 4, required: true, maxlength: 262144 });
  const interrupt = h("input", { name: "interrupt", type: "checkbox" });
  const once = requestId();
  return dialog("Message to the agent", {
    confirm: "Send",
    build: (body) => append(body, [
      field("Text", text, "The agent reads it before its next step."),
      field("Interrupt", interrupt, "Stops the model call that runs, which is billed to that point. The live sub-agents get the text, too. Tool calls that run go on."),
    ]),
    submit: async () => {
      const sent = { text: text.value, ...(interrupt.checked ? { interrupt: true } : {}) };
      await api.post(path`/v1/tasks/${task.task_id}/messages`, sent, { headers: { "Idempotency-Key": once } });
      notice("The message is recorded.");
      refresh();
    },
  });
}

const amount = (name, step) => h("input", { name, type: "number", min: 0, step, size: 8 });

function requeue(task, refresh) {
  const reason = h("input", { name: "reason", maxlength: 1000, required: true, autocomplete: "off" });
  const more = [["Also more US dollars", amount("extra_cost", "any")], ["Also more tokens", amount("extra_tokens", 1)], ["Also more steps", amount("extra_steps", 1)]];
  const once = requestId();
  return dialog("Requeue this task?", {
    confirm: "Requeue",
    build: (body) => append(body, [h("p", "It begins its next attempt, and continues from its history."), more.map((pair) => field(...pair)), field("Reason", reason, "It is recorded.")]),
    submit: async () => {
      const extra = Object.fromEntries(more.filter(([, control]) => control.value).map(([, control]) => [control.name, Number(control.value)]));
      const page = await api.post("/v1/tasks/act", { act: "REQUEUE", filter: { task_id: [task.task_id] }, reason: reason.value.trim(), operation_id: once, ...extra });
      const [outcome] = listIn(page, "outcomes");
      if (!["DONE", "ALREADY"].includes(outcome?.result)) throw new Error(outcome?.message || outcome?.reason || "The task was not requeued.");
      notice("The task is requeued.");
      refresh();
    },
  });
}

// A fork keeps the model and the prompt that the code of its agent or function chooses.
function fork(task, definition) {
  const step = h("input", { name: "step", type: "number", min: 0, max: task.step, size: 6 });
  const long = (name, rows) => h("textarea", { name, rows, maxlength: 262144 });
  const others = [["Most US dollars", amount("max_cost", "any")], ["Most tokens", amount("max_tokens", 1)]];
  if (!task.function) {
    const model = h("input", { name: "model", placeholder: task.model, autocomplete: "off" });
    others.unshift(["Model", model, "Empty: the same."], ["System prompt", long("system", 3), "Empty: the same."]);
  }
  if (!noReader(task, definition)) others.unshift(["Next message", long("message", 3), "Empty: it continues by itself."]);
  const once = requestId();
  return dialog("Fork this task", {
    confirm: "Fork",
    build: (body) =>
      append(body, [
        h("p", "A new task continues from this one's history, with a copy of its files as they are now. This task does not change."),
        field("After step", step, "Empty: as late as possible. 0: before the first step."),
        others.map((row) => field(...row)),
      ]),
    submit: async () => {
      const body = step.value === "" ? {} : { step: Number(step.value) };
      for (const [, control] of others) if (control.value.trim()) body[control.name] = control.type === "number" ? Number(control.value) : control.value;
      const forked = await api.post(path`/v1/tasks/${task.task_id}/fork`, body, { headers: { "Idempotency-Key": once } });
      location.hash = `#/tasks/${encodeURIComponent(forked.task_id)}`;
    },
  });
}
