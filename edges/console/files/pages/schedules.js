// Schedules: when they are due, what their runs came to, pause, resume and a run at once.

import { allOf, api, path, requestId } from "../api.js";
import { subscribe } from "../changes.js";
import { append, fill, h } from "../dom.js";
import { duration, number, oneLine, pretty, shortId, words } from "../format.js";
import { stateMark } from "../states.js";
import { button, changing, dialog, errorBox, every, facts, field, notice, throttled, timeMark } from "../ui.js";
import { taskFields } from "./task_form.js";
import { section } from "./workers.js";

export default async function schedulesPage(context) {
  return context.parts[0] ? one(context, context.parts[0]) : all(context);
}

const OVERLAPS = { SKIP: "a due time is skipped", QUEUE: "a due time waits", CANCEL_PREVIOUS: "the earlier run is cancelled" };
const SHOWN_RUNS = 50;
const state = (schedule) => (schedule.paused ? h("span.state.warn", "‖ paused") : h("span.state.ok", "● active"));
const what = (schedule) => oneLine(schedule.task.goal || schedule.task.function?.name || "", 120);

async function all(context) {
  const message = h("div");
  const list = section("All schedules", "There is no schedule.", [
    { name: "Name", cell: (one) => h("a", { href: `#/schedules/${encodeURIComponent(one.schedule_id)}`, "data-row": true }, one.name) },
    { name: "State", cell: state },
    { name: "Due", cell: (one) => [h("code", one.cron), h("span.dim", ` ${one.time_zone}`)] },
    { name: "Next", cell: (one) => timeMark(one.next_due_at) },
    { name: "Submits", class: "wrap", cell: what },
    { name: "Started", class: "num", cell: (one) => number(one.started_runs) },
    { name: "Skipped", class: "num", cell: (one) => number(one.skipped_runs) },
    { name: "Failed", class: "num", cell: (one) => (one.failed_runs ? h("span.bad", number(one.failed_runs)) : "0") },
    { name: "Problem", class: "wrap", cell: (one) => h("span.bad", one.problem) },
  ]);
  fill(context.root, h("div.head", h("h1", "Schedules"), h("span.buttons", button("Create a schedule …", { needs: "WRITE", tone: "primary", onclick: create }))), message, list.element);
  const load = throttled(2000, async () => {
    try {
      const schedules = await allOf("/v1/schedules", "schedules", { page_size: 500 });
      if (!context.isCurrent()) return;
      fill(message);
      list.show(schedules, (one) => JSON.stringify([one.schedule_id, one.revision, one.paused, one.next_due_at, one.started_runs, one.skipped_runs, one.failed_runs, one.problem]));
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });
  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  context.onLeave(every(5000, load)); // a pause, for one, changes no task
  load();
}

function create() {
  const name = h("input", { name: "name", required: true, autocomplete: "off" });
  const cron = h("input", { name: "cron", required: true, placeholder: "0 7 * * MON-FRI", autocomplete: "off" });
  const zone = h("input", { name: "time_zone", value: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC", autocomplete: "off" });
  const overlap = h("select", { name: "overlap_policy" }, Object.entries(OVERLAPS).map(([policy, does]) => h("option", { value: policy }, does)));
  let read;
  return dialog("Create a schedule", {
    confirm: "Create",
    build: (body) => {
      append(body, [field("Name", name), field("Due", cron, "Minute, hour, day of the month, month, day of the week."), field("Time zone", zone), field("While an earlier run is active", overlap), h("h3", "What it submits")]);
      read = taskFields(body);
    },
    submit: async () => {
      const made = await api.post("/v1/schedules", { name: name.value.trim(), cron: cron.value.trim(), time_zone: zone.value.trim(), overlap_policy: overlap.value, task: read() });
      location.hash = `#/schedules/${encodeURIComponent(made.schedule_id)}`;
    },
  });
}

async function one(context, id) {
  const message = h("div");
  const about = h("div");
  const runs = section("Runs", "It has not been due yet.", [
    { name: "Due", cell: (run) => timeMark(run.due_at) },
    { name: "Outcome", cell: (run) => h(`span.state.${{ STARTED: "ok", FAILED: "bad", SKIPPED: "dim" }[run.outcome] ?? "warn"}`, words(run.outcome)) },
    { name: "Task", cell: (run) => (run.task_id ? [h("a", { href: `#/tasks/${encodeURIComponent(run.task_id)}`, "data-row": true }, shortId(run.task_id)), " ", run.task_state ? stateMark(run.task_state) : null] : "–") },
    { name: "Why", class: "wrap", cell: (run) => [run.reason ? words(run.reason) : "", run.message].filter(Boolean).join(": ") },
  ]);
  fill(context.root, h("p.back", h("a", { href: "#/schedules" }, "Schedules")), message, about, runs.element);
  const load = throttled(1500, async () => {
    try {
      const answer = await api.get(path`/v1/schedules/${id}`, { runs: SHOWN_RUNS });
      if (!context.isCurrent()) return;
      const schedule = answer.schedule ?? answer;
      context.title(schedule.name);
      fill(message);
      fill(about, h("div.head", h("h1", schedule.name), state(schedule), buttons(schedule, load)), details(schedule));
      runs.show(answer.runs ?? [], (run) => JSON.stringify(run), answer.runs?.length === SHOWN_RUNS);
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });
  context.onLeave(load.cancel);
  context.onLeave(subscribe({ ready: load, change: load }));
  context.onLeave(every(5000, load)); // a pause, for one, changes no task
  load();
}

function details(schedule) {
  const overlap = OVERLAPS[schedule.overlap_policy] ?? words(schedule.overlap_policy);
  return facts(
    schedule.problem ? ["Problem", h("span.bad", schedule.problem)] : null,
    schedule.paused ? ["Paused by", schedule.paused_by || "–", schedule.pause_reason ? `: ${schedule.pause_reason}` : ""] : ["Next", timeMark(schedule.next_due_at)],
    ["Due", h("code", schedule.cron), ` ${schedule.time_zone}`],
    ["Overlap", `${overlap} while an earlier run is active`],
    ["Catches up", `a run starts at most ${duration(schedule.catch_up_seconds)} late`],
    ["Runs", `${number(schedule.started_runs)} started, ${number(schedule.waiting_runs)} waiting, ${number(schedule.skipped_runs)} skipped, ${number(schedule.failed_runs)} failed`],
    ["Submits", h("details", h("summary", what(schedule) || "a task"), h("pre", pretty(schedule.task)))],
  );
}

function buttons(schedule, load) {
  const once = requestId();
  const trigger = button("Run now …", { needs: "WRITE", onclick: () => confirm() });
  const confirm = () =>
    dialog(`Run ${schedule.name} now?`, {
      confirm: "Run now",
      build: (body) => body.append(h("p", "It submits one task at once, beside the due times. For the due times it counts as a running task.")),
      submit: async () => {
        const task = await api.post(path`/v1/schedules/${schedule.schedule_id}/trigger`, {}, { headers: { "Idempotency-Key": once } });
        location.hash = `#/tasks/${encodeURIComponent((task.task ?? task).task_id)}`;
      },
    });
  if (schedule.paused) {
    const resume = button("Resume", {
      needs: "WRITE",
      tone: "primary",
      onclick: () =>
        changing(resume, async () => {
          await api.post(path`/v1/schedules/${schedule.schedule_id}/resume`);
          notice(`${schedule.name} is active again.`);
          load();
        }),
    });
    return h("span.buttons", resume, trigger);
  }
  return h("span.buttons", button("Pause …", { needs: "WRITE", onclick: () => pause(schedule, "schedules", "Due times that pass meanwhile start nothing.", load) }), trigger);
}

// Pauses a schedule or a webhook, with a reason.
export function pause(thing, kind, consequence, load) {
  const reason = h("input", { name: "reason", maxlength: 1000, required: true, autocomplete: "off" });
  return dialog(`Pause ${thing.name}?`, {
    confirm: "Pause",
    build: (body) => body.append(h("p", consequence), field("Reason", reason, "Others read it here.")),
    submit: async () => {
      await api.post(path`/v1/${kind}/${thing.schedule_id ?? thing.webhook_id}/pause`, { reason: reason.value.trim() });
      notice(`${thing.name} is paused.`);
      load();
    },
  });
}

