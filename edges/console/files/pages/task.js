// One task: what it does now, what it did, what it costs, and what a person can do about it.

import { api, listIn, path, requestId, tenantHeaders, url } from "../api.js";
import { fill, h, keyed, setText } from "../dom.js";
import { bytes, count, duration, epoch, money, moneyExact, number, oneLine, pretty, shortId, words } from "../format.js";
import { isEnded, known, stateMark, why } from "../states.js";
import { Stream } from "../stream.js";
import { announce, button, dialog, errorBox, errorText, field, longText, may, notice, throttled, timeMark } from "../ui.js";
import { waitPanel } from "./answer.js";
import { doubtPanel } from "./resolve.js";
import { listAddress, title } from "./tasks.js";
import { Timeline } from "./timeline.js";
import { Waterfall } from "./waterfall.js";

const REFRESH_MS = 1500;

export default async function taskPage(context) {
  const { root, onLeave } = context;
  const taskId = context.parts[0];
  let task = await api.get(path`/v1/tasks/${taskId}`);
  if (!context.isCurrent()) return;

  const header = new Header(taskId);
  const waiting = h("div.waiting");
  const explained = h("ul.explain");
  const link = h("span.link-state", { role: "status" });
  const end = h("div", { "data-end": true });
  const aside = new Aside(task);
  const timeline = new Timeline({
    marker: announce,
    budget: (budget) => header.budget(budget),
    owner: (worker, claim) => header.owner(worker, claim),
    tree: () => aside.readTree(),
  });
  const waterfall = new Waterfall(taskId);
  const steps = h("div", timeline.element, end);
  const actions = h("div.actions");
  fill(
    root,
    h("p.back", h("a", { href: listAddress }, "Tasks"), h("span.dim", " / "), h("code", { title: taskId }, taskId)),
    header.element,
    h("div.columns", h("div.column", waiting, h("div.head", views(context, (view) => { steps.hidden = view !== ""; waterfall.show(view === "waterfall"); }), link), steps, waterfall.element), h("aside", { "aria-label": "About this task" }, actions, h("section", h("h2", "Now"), explained), aside.element)),
  );

  let shownWait = "";
  function show(now) {
    if (now.sequence >= task.sequence || now === task) task = now;
    context.title(`${known(task.state).word} · ${oneLine(title(task), 60)}`);
    header.show(task);
    aside.show(task);
    fill(actions, actionButtons(task, refresh));
    const key = task.wait ? `wait ${task.wait.wait_id}` : task.reason === "TOOL_IN_DOUBT" ? `doubt ${task.calls_in_doubt.join(" ")}` : "";
    if (key !== shownWait) {
      shownWait = key;
      fill(waiting);
      if (task.wait) waiting.append(waitPanel(task, { onAnswered: () => refresh() }));
      else if (key) showDoubts();
    }
  }

  async function showDoubts() {
    if (!may("TENANT_ADMIN")) {
      fill(waiting, h("section.doubt", h("h2", "A call may or may not have happened"), h("p", "A person with the permission TENANT_ADMIN has to find out, and to resolve it.")));
      return;
    }
    try {
      const calls = listIn(await api.get("/v1/calls-in-doubt", { task_id: taskId }), "calls");
      fill(waiting, calls.map((call) => doubtPanel(call, { withTask: false, onResolved: () => { shownWait = ""; refresh(); } })));
    } catch (error) {
      fill(waiting, errorBox(error, showDoubts));
    }
  }

  const refresh = throttled(REFRESH_MS, async () => {
    try {
      const [now, explanation] = await Promise.all([api.get(path`/v1/tasks/${taskId}`), api.get(path`/v1/tasks/${taskId}/explain`).catch(() => null)]);
      if (!context.isCurrent()) return;
      show(now);
      if (explanation) fill(explained, explanation.lines.map((line) => h("li", line)));
    } catch (error) {
      if (context.isCurrent()) setText(link, errorText(error));
    }
  });

  // Keeps the end in view if it was.
  let isFollowing = false;
  const scroll = () => {
    const page = document.scrollingElement;
    isFollowing = page.scrollTop > 200 && page.scrollHeight - page.scrollTop - page.clientHeight < 60;
  };
  addEventListener("scroll", scroll, { passive: true });
  let isDrawing = false;
  const follow = () => {
    if (!isFollowing || isDrawing) return;
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
    });
  };

  const statusWords = { live: "live", connecting: "connecting …", waiting: "reconnecting …", ended: "complete", failed: "not live" };
  const stream = new Stream(path`/v1/tasks/${taskId}/events`, {}, {
    event: (event) => {
      timeline.apply(event);
      follow();
      if (event.kind === "transition" || event.kind === "assistant_message" || event.kind === "operator_request") refresh();
      if (event.sequence) waterfall.changed();
    },
    status: (status, error) => {
      setText(link, error && status === "failed" ? errorText(error) : statusWords[status]);
      link.className = `link-state ${status}`;
      if (status === "ended") refresh();
    },
  });
  show(task);
  refresh();
  aside.readTree();
  aside.readFiles();
  onLeave(() => {
    stream.stop();
    refresh.cancel();
    waterfall.show(false);
    removeEventListener("scroll", scroll);
  });
}

// The buttons that choose the view, which is kept in the address. show(view): "" is the timeline.
function views(context, show) {
  const named = [["", "Timeline"], ["waterfall", "Waterfall"]];
  let chosen = context.query.get("view") ?? "";
  if (!named.some(([view]) => view === chosen)) chosen = "";
  const buttons = named.map(([view, name]) => h("button.chip", { type: "button", onclick: () => choose(view) }, name));
  const choose = (view) => {
    chosen = view;
    context.setQuery(new URLSearchParams(view ? { view } : {}));
    draw();
  };
  const draw = () => {
    buttons.forEach((element, at) => element.setAttribute("aria-pressed", String(named[at][0] === chosen)));
    show(chosen);
  };
  draw();
  return h("span.views", { role: "group", "aria-label": "View" }, buttons);
}

// The header: state, and the facts that an operator looks for first.
class Header {
  constructor(taskId) {
    this.taskId = taskId;
    this.state = h("span.big-state");
    this.why = h("p.why-line");
    this.goal = h("h1.task-title");
    this.values = {};
    this.names = {};
    this.facts = h("dl.strip");
    for (const name of ["Worker", "Epoch", "Money", "Tokens", "Step", "Attempt", "Age"]) {
      this.names[name] = h("dt", name);
      this.values[name] = h("dd");
      this.facts.append(h("div", { id: `fact-${name.toLowerCase()}` }, this.names[name], this.values[name]));
    }
    this.meter = h("meter", { min: 0, "aria-label": "Money used of the cap" });
    this.money = h("span");
    fill(this.values.Money, this.money, this.meter);
    this.element = h("div.task-header", h("div.title-line", this.state, this.goal), this.why, this.facts);
  }

  show(task) {
    this.task = task;
    setText(this.goal, title(task));
    fill(this.state, stateMark(task.state));
    const message = why(task) || (isEnded(task.state) && task.state !== "SUCCEEDED" ? task.message : "");
    const reason = task.reason && !["SUCCEEDED", "RUNNING"].includes(task.state) ? sentence(words(task.reason)) : "";
    setText(this.why, [reason, message].filter(Boolean).join(": "));
    this.owner(task.worker, task.worker ? this.epoch : 0);
    this.budget(task.budget);
    setText(this.values.Step, task.step ? `${number(task.step)}${task.limits.max_steps ? ` of ${number(task.limits.max_steps)}` : ""}` : "–");
    setText(this.values.Attempt, number(task.attempt));
    this.values.Attempt.title = `It was opened by a worker ${count(task.claim_count, "time")}.`;
    setText(this.names.Age, task.ended_at ? "Took" : "Age");
    const from = Date.parse(task.created_at);
    const age = () => setText(this.values.Age, duration(((task.ended_at ? Date.parse(task.ended_at) : Date.now()) - from) / 1000));
    age();
    if (!this.ticks) {
      this.ticks = true;
      this.values.Age.setAttribute("data-since", "");
      this.values.Age.addEventListener("tick", () => this.tick());
    }
    this.tick = age;
  }

  owner(worker, claim) {
    this.epoch = claim;
    setText(this.values.Worker, worker || "none");
    setText(this.values.Epoch, worker && claim ? epoch(claim) : "–");
  }

  budget(budget) {
    if (!budget) return;
    const cap = budget.max_cost_usd;
    setText(this.money, `${money(budget.used_cost_usd)}${cap ? ` of ${moneyExact(cap)}` : ", no cap"}`);
    this.money.title = `${moneyExact(budget.used_cost_usd)} used, ${moneyExact(budget.reserved_cost_usd)} reserved${budget.unpriced_calls ? `, ${count(budget.unpriced_calls, "call")} of unknown price` : ""}`;
    this.meter.hidden = !cap;
    if (cap) Object.assign(this.meter, { max: cap, low: cap * 0.8, high: cap * 0.95, optimum: 0, value: budget.used_cost_usd });
    setText(this.values.Tokens, `${number(budget.used_tokens)} of ${number(budget.max_tokens)}`);
  }
}

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");

// Beside the timeline: what was submitted, the tree, the files, the outputs.
class Aside {
  constructor(task) {
    this.task = task;
    this.about = h("section");
    this.tree = h("section", { hidden: true });
    this.files = h("section", { hidden: true });
    this.outputs = h("section", { hidden: true });
    this.element = h("div", this.about, this.outputs, this.tree, this.files);
    this.readTree = throttled(2000, () => this.#readTree());
    this.readFiles = throttled(5000, () => this.#readFiles());
  }

  show(task) {
    const moved = task.sequence !== this.task.sequence;
    this.task = task;
    const labels = Object.entries(task.labels ?? {}).map(([name, value]) => h("span.label", `${name}=${value}`));
    const pairs = [
      ["Model", task.model || "the worker's default"],
      ["Agent", task.function?.name ?? ""],
      ["Queue", `${task.queue || "default"}, priority ${words(task.priority)}`],
      ["Tenant", task.tenant],
      ["Labels", labels.length > 0 ? labels : ""],
      ["Source", task.source && task.source.kind !== "MANUAL" ? [words(task.source.kind), task.source.source_id].filter(Boolean).join(" ") : ""],
      ["Tools", task.tools === null ? "all of the tenant's" : task.tools.join(", ") || "none"],
      ["Need approval", task.approve_tools.join(", ")],
      ["Parent", task.parent_task_id ? h("a", { href: `#/tasks/${encodeURIComponent(task.parent_task_id)}` }, shortId(task.parent_task_id)) : ""],
      ["Forked from", task.forked_from_task_id ? h("a", { href: `#/tasks/${encodeURIComponent(task.forked_from_task_id)}` }, shortId(task.forked_from_task_id)) : ""],
      ["Submitted", timeMark(task.created_at)],
      ["Deadline", task.deadline_at && !isEnded(task.state) ? timeMark(task.deadline_at) : ""],
      ["Next retry", task.next_retry_at ? timeMark(task.next_retry_at) : ""],
    ].filter(([, value]) => value !== "" && value !== null);
    const more = [];
    if (task.system) more.push(h("details", h("summary", "System prompt"), longText(task.system)));
    if (task.function && task.function.input !== null) more.push(h("details", h("summary", "Input"), longText(pretty(task.function.input))));
    fill(this.about, h("h2", "About"), h("dl.facts", pairs.map(([name, value]) => h("div", h("dt", name), h("dd", value)))), more);
    this.outputs.hidden = task.outputs.length === 0;
    if (task.outputs.length > 0) {
      fill(this.outputs, h("h2", "Outputs"), h("ul.plain-list", task.outputs.map((output) => h("li", h("b", output.kind), ` ${output.uri}`, h("span.dim", ` ${[output.size_bytes === null ? "" : bytes(output.size_bytes), words(output.state), output.description].filter(Boolean).join(" · ")}`)))));
    }
    if (moved) {
      this.readFiles();
      if (!this.tree.hidden) this.readTree();
    }
  }

  async #readTree() {
    try {
      const answer = await api.get(path`/v1/tasks/${this.task.task_id}/tree`);
      const tasks = listIn(answer, "tasks");
      this.tree.hidden = tasks.length < 2;
      if (tasks.length < 2) return;
      const children = new Map();
      for (const one of tasks) children.set(one.parent_task_id, [...(children.get(one.parent_task_id) ?? []), one]);
      const branch = (one) => h("li", this.#leaf(one), children.has(one.task_id) ? h("ul", children.get(one.task_id).map(branch)) : null);
      const ids = new Set(tasks.map((one) => one.task_id));
      const roots = tasks.filter((one) => !ids.has(one.parent_task_id));
      const total = tasks.reduce((sum, one) => sum + (one.cost_usd ?? 0), 0);
      fill(this.tree, h("h2", "Sub-agents"), h("p.dim", `${count(tasks.length, "task")}, ${money(total)} together`), h("ul.tree", roots.map(branch)));
    } catch {
      this.tree.hidden = true; // The timeline has the same.
    }
  }

  #leaf(one) {
    const isThis = one.task_id === this.task.task_id;
    return h("a", { href: `#/tasks/${encodeURIComponent(one.task_id)}`, "aria-current": isThis ? "true" : null }, stateMark(one.state), ` ${oneLine(title(one), 60)}`, h("span.dim", ` ${money(one.cost_usd)}`));
  }

  async #readFiles() {
    try {
      const files = listIn(await api.get(path`/v1/tasks/${this.task.task_id}/files`), "files");
      this.files.hidden = files.length === 0;
      if (files.length === 0) return;
      if (!this.fileList) {
        this.fileList = h("ul.files");
        fill(this.files, h("h2", "Files"), this.fileList);
      }
      keyed(this.fileList, files.slice(0, 200), (file) => `${file.path} ${file.modified_at} ${file.size_bytes}`, (file) => this.#file(file));
    } catch {
      this.files.hidden = true;
    }
  }

  #file(file) {
    const name = file.kind === "FILE" ? h("button.link", { type: "button", onclick: () => showFile(this.task.task_id, file) }, file.path) : h("span", `${file.path}${file.kind === "DIRECTORY" ? "/" : ""}`);
    return h("li", name, h("span.dim", file.kind === "FILE" ? ` ${bytes(file.size_bytes)}` : ""));
  }
}

const SHOWN_BYTES = 256 * 1024;

// Shows the beginning of a file as text. It is never opened as a page: it is an agent's.
function showFile(taskId, file) {
  const text = h("pre.file", "Loading …");
  return dialog(file.path, {
    cancel: "Close",
    build: async (body) => {
      body.append(text);
      try {
        const route = `${path`/v1/tasks/${taskId}/files/`}${file.path.split("/").map(encodeURIComponent).join("/")}`;
        const response = await api.file(url(route), { headers: { Accept: "*/*", ...tenantHeaders() } });
        const reader = response.body.getReader();
        const chunks = [];
        let size = 0;
        while (size < SHOWN_BYTES) {
          const { done, value } = await reader.read();
          if (done) break;
          chunks.push(value);
          size += value.length;
        }
        reader.cancel().catch(() => {});
        const shown = new TextDecoder().decode(await new Blob(chunks).arrayBuffer());
        fill(text, size === 0 ? "(empty)" : shown.slice(0, SHOWN_BYTES), size < file.size_bytes ? `\n… the first ${bytes(SHOWN_BYTES)} of ${bytes(file.size_bytes)}` : "");
      } catch (error) {
        fill(text, errorText(error));
      }
    },
  });
}

// What a person can do to the task.
function actionButtons(task, refresh) {
  const over = isEnded(task.state) ? "The task has ended." : "";
  return [
    button("Message …", { needs: "WRITE", why: over || (task.function ? "A function takes no messages." : ""), onclick: () => message(task, refresh) }),
    button("Fork …", { needs: "WRITE", why: task.function ? "A function's task cannot be forked." : "", onclick: () => fork(task) }),
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
  const once = requestId();
  return dialog("Message to the agent", {
    confirm: "Send",
    build: (body) => body.append(field("Text", text, "The agent reads it before its next step.")),
    submit: async () => {
      await api.post(path`/v1/tasks/${task.task_id}/messages`, { text: text.value }, { headers: { "Idempotency-Key": once } });
      notice("The message is recorded.");
      refresh();
    },
  });
}

function fork(task) {
  const step = h("input", { name: "step", type: "number", min: 0, max: task.step, size: 6 });
  const text = h("textarea", { name: "message", rows: 3, maxlength: 262144 });
  const once = requestId();
  return dialog("Fork this task", {
    confirm: "Fork",
    build: (body) =>
      body.append(
        h("p", "A new task continues from this one's history, with a copy of its files as they are now. This task does not change."),
        field("After step", step, "Empty: as late as possible. 0: before the first step."),
        field("Next message", text, "Empty: it continues by itself."),
      ),
    submit: async () => {
      const body = {};
      if (step.value !== "") body.step = Number(step.value);
      if (text.value.trim()) body.message = text.value;
      const forked = await api.post(path`/v1/tasks/${task.task_id}/fork`, body, { headers: { "Idempotency-Key": once } });
      location.hash = `#/tasks/${encodeURIComponent((forked.task ?? forked).task_id)}`;
    },
  });
}

