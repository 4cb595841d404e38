// One task: what it does now, what it did, what it costs, and what a person can do about it.

import { allOf, api, path } from "../api.js";
import { fill, h, setText } from "../dom.js";
import { count, duration, epoch, money, moneyExact, number, oneLine, pretty, sentence, words } from "../format.js";
import { markdown } from "../markdown.js";
import { isEnded, known, stateMark, why } from "../states.js";
import { Stream } from "../stream.js";
import { announce, errorBox, errorText, longText, may, throttled } from "../ui.js";
import { waitPanel } from "./answer.js";
import { definitionOf } from "./agents.js";
import { Aside } from "./aside.js";
import { showPrompt } from "./contents.js";
import { Plans } from "./plans.js";
import { doubtPanel } from "./resolve.js";
import { actionButtons } from "./steer.js";
import { listAddress, title } from "./tasks.js";
import { Timeline } from "./timeline.js";
import { Waterfall } from "./waterfall.js";

const REFRESH_MS = 1500;

export default async function taskPage(context) {
  const { root, onLeave } = context;
  const taskId = context.parts[0];
  let task = await api.get(path`/v1/tasks/${taskId}`);
  const definition = await definitionOf(task);
  if (!context.isCurrent()) return;

  const header = new Header(taskId);
  const waiting = h("div.waiting");
  const explained = h("ul.explain");
  const link = h("span.link-state", { role: "status" });
  const end = h("div", { "data-end": true });
  const aside = new Aside(task);
  const plans = new Plans(taskId);
  const timeline = new Timeline({
    marker: announce,
    budget: (budget) => header.budget(budget),
    owner: (worker, claim) => header.owner(worker, claim),
    tree: () => aside.readTree(),
    tools: (names) => aside.showTools(names),
    plan: (id) => plans.view(id),
    prompt: task.function ? null : (step) => showPrompt(taskId, step),
  });
  const result = h("section.result", { hidden: true });
  const waterfall = new Waterfall(taskId);
  const steps = h("div", timeline.element, end);
  const actions = h("div.actions");
  fill(
    root,
    h("p.back", h("a", { href: listAddress }, "Tasks"), h("span.dim", " / "), h("code", { title: taskId }, taskId)),
    header.element,
    h("div.columns", h("div.column", waiting, result, h("div.head", views(context, (view) => { steps.hidden = view !== ""; waterfall.show(view === "waterfall"); }), link), steps, waterfall.element), h("aside", { "aria-label": "About this task" }, actions, h("section", h("h2", "Now"), explained), aside.element)),
  );

  let shownWait = "";
  function show(now) {
    if (now.sequence >= task.sequence || now === task) task = now;
    context.title(`${known(task.state).word} · ${oneLine(title(task), 60)}`);
    header.show(task);
    aside.show(task);
    showResult(result, task);
    fill(actions, actionButtons(task, definition, refresh));
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
      const calls = await allOf("/v1/calls-in-doubt", "calls", { task_id: taskId });
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
      if (event.sequence) {
        waterfall.changed();
        plans.changed();
      }
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
    plans.read.cancel();
    waterfall.show(false);
    removeEventListener("scroll", scroll);
  });
}

// What came of the task, first.
function showResult(element, task) {
  const data = task.result_data ?? task.result;
  element.hidden = !isEnded(task.state) || data === "" || data === null;
  if (element.hidden || element.sequence === task.sequence) return;
  element.sequence = task.sequence;
  fill(element, h("h2", task.state === "SUCCEEDED" ? "Result" : "What it said last"), typeof data === "string" ? markdown(data) : longText(pretty(data)));
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
    this.values.Attempt.parentElement.hidden = task.attempt < 2;
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
    for (const name of ["Worker", "Epoch"]) this.values[name].parentElement.hidden = !worker;
    setText(this.values.Worker, worker);
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
