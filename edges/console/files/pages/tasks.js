// The list of tasks: read once, then kept up to date by the stream of changes.

import { api, listIn } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, keyed, setText } from "../dom.js";
import { count, money, moneyExact, number, oneLine, shortId } from "../format.js";
import { ENDED, known, LIVE, stateMark, STATES, why } from "../states.js";
import { announce, errorBox, throttled, timeMark, updateTime } from "../ui.js";
import { actButtons } from "./acts.js";

// The address of the list as it was left, with its filters.
export let listAddress = "#/tasks";

const LIVE_LIMIT = 500; // The most that the gateway gives in one page.
const PAGE = 100;
const MAX_NAMED = 500; // Tasks that one act may name.
const RUNNING_MS = 5000;
const SHOWN = 300; // Rows at most: a person searches rather than scrolls further.

export default async function tasksPage(context) {
  const { root, query, onLeave } = context;
  const tasks = new Map();
  let moreToken = "";
  let hasAllLive = false;
  let problem = null;
  let isRead = false;

  // What the gateway filters by, and what is filtered here: the text.
  const chosen = new Set(query.getAll("state").filter((state) => state in STATES));
  const fields = {
    q: h("input", { type: "search", "data-search": true, placeholder: "Search goal, id, reason, worker  ( / )", "aria-label": "Search", value: query.get("q") ?? "" }),
    label: h("input", { type: "search", placeholder: "label=value", "aria-label": "Label", value: query.get("label") ?? "", size: 16 }),
    agent: h("input", { type: "search", placeholder: "agent@revision", "aria-label": "Agent", value: query.get("agent") ?? "", size: 14 }),
    queue: h("input", { type: "search", placeholder: "queue", "aria-label": "Queue", value: query.get("queue") ?? "", size: 12 }),
    reason: h("input", { type: "search", placeholder: "REASON", "aria-label": "Reason", value: query.get("reason") ?? "", size: 20 }),
  };

  // Counts by state, which are also the filter.
  const chips = new Map();
  const chipBar = h("div.chips", { role: "group", "aria-label": "States" });
  for (const state of [...LIVE, ...ENDED]) {
    const number = h("span.number", "");
    const chip = h("button.chip", { type: "button", "aria-pressed": String(chosen.has(state)) }, stateMark(state), number);
    chip.addEventListener("click", () => {
      if (!chosen.delete(state)) chosen.add(state);
      chip.setAttribute("aria-pressed", String(chosen.has(state)));
      changed();
    });
    chips.set(state, { chip, number });
    chipBar.append(chip);
  }

  const list = h("div.rows", { role: "list", "aria-label": "Tasks" });
  const message = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: loadMore }, "Show older tasks");
  const summary = h("span.dim");
  fill(
    root,
    h("div.head", h("h1", "Tasks"), summary, h("span.buttons", actButtons(selected))),
    h("div.filters", { role: "search" }, fields.q, fields.agent, fields.queue, fields.label, fields.reason),
    chipBar,
    message,
    list,
    more,
  );

  function filter() {
    const [name, ...rest] = fields.label.value.trim().split("=");
    return { agent: fields.agent.value.trim(), queue: fields.queue.value.trim(), label: name ? `${name}:${rest.join("=")}` : "", reason: fields.reason.value.trim().toUpperCase() };
  }

  // The filter of an act on the tasks of this list. A text selects those that are found here.
  function selected() {
    if (fields.q.value.trim()) return { task_id: found().slice(0, MAX_NAMED).map((task) => task.task_id) };
    const { agent, queue, label, reason } = filter();
    const colon = label.indexOf(":");
    return { ...(agent && { agent }), ...(chosen.size > 0 && { state: [...chosen] }), ...(queue && { queue }), ...(label && { label: { [label.slice(0, colon)]: label.slice(colon + 1) } }), ...(reason && { reason: [reason] }) };
  }

  function found() {
    const text = fields.q.value.trim().toLowerCase();
    const those = [...tasks.values()].filter((task) => isWanted(task) && (chosen.size === 0 || chosen.has(task.state)) && matchesText(task, text));
    return those.sort((one, other) => (one.created_at < other.created_at ? 1 : -1));
  }

  function isWanted(task) {
    const { agent, queue, label, reason } = filter();
    if (agent && agent !== task.agent && agent !== `${task.agent}@${task.agent_revision}`) return false;
    if (queue && task.queue !== queue) return false;
    if (reason && task.reason !== reason) return false;
    if (label) {
      const colon = label.indexOf(":");
      if (task.labels?.[label.slice(0, colon)] !== label.slice(colon + 1)) return false;
    }
    return true;
  }

  function matchesText(task, text) {
    if (!text) return true;
    const where = [task.task_id, task.goal, task.state, known(task.state).word, task.reason, task.message, task.worker, task.model, task.function?.name, task.queue, why(task)];
    return where.some((part) => part && String(part).toLowerCase().includes(text));
  }

  // Reads everything live and the newest; with a state chosen also the newest in that state.
  async function load() {
    try {
      const common = filter();
      const wanted = chosen.size > 0 ? [...chosen] : [];
      const [live, newest] = await Promise.all([
        api.get("/v1/tasks", { ...common, state: LIVE, page_size: LIVE_LIMIT }),
        api.get("/v1/tasks", { ...common, state: wanted, page_size: PAGE }),
      ]);
      if (!context.isCurrent()) return;
      tasks.clear();
      for (const task of [...listIn(live, "tasks"), ...listIn(newest, "tasks")]) put(task);
      hasAllLive = !live.next_page_token;
      moreToken = newest.next_page_token ?? "";
      problem = null;
    } catch (error) {
      problem = error;
    }
    isRead = true;
    draw();
  }

  async function loadMore() {
    const page = await api.get("/v1/tasks", { ...filter(), state: [...chosen], page_size: PAGE, page_token: moreToken });
    for (const task of listIn(page, "tasks")) put(task);
    moreToken = page.next_page_token ?? "";
    draw();
  }

  // Keeps the newer of two states of a task: answers and changes may cross.
  function put(task) {
    const old = tasks.get(task.task_id);
    if (!old || task.sequence >= old.sequence) tasks.set(task.task_id, task);
  }

  function draw() {
    if (!context.isCurrent()) return;
    const counts = new Map();
    const text = fields.q.value.trim();
    const shownTasks = found();
    for (const task of tasks.values()) if (isWanted(task)) counts.set(task.state, (counts.get(task.state) ?? 0) + 1);
    for (const [state, { chip, number: shown }] of chips) {
      const some = counts.get(state) ?? 0;
      const isPart = LIVE.includes(state) ? !hasAllLive : moreToken !== "";
      setText(shown, some === 0 ? (isPart ? "" : "0") : `${number(some)}${isPart ? "+" : ""}`);
      chip.classList.toggle("none", some === 0);
      chip.title = isPart ? `${number(some)} of those that were read` : "";
    }
    keyed(list, shownTasks.slice(0, SHOWN), (task) => task.task_id, makeRow, updateRow);
    setText(summary, isRead && !problem ? `${count(shownTasks.length, "task")}${moreToken && !text ? ", and older ones" : ""}` : "");
    more.hidden = !moreToken;
    if (problem) fill(message, errorBox(problem, load));
    else if (isRead && shownTasks.length === 0) fill(message, empty(text));
    else if (shownTasks.length > SHOWN) fill(message, h("p.dim", `The newest ${SHOWN} of ${number(shownTasks.length)} are shown: search, or choose a state.`));
    else fill(message);
  }

  function empty(text) {
    const hasFilter = text || chosen.size > 0 || Object.values(filter()).some(Boolean);
    if (hasFilter) return h("p.empty", "No task matches.");
    return h("div.empty", h("p", "There is no task yet."), h("pre", 'tenure submit "Compare the prices of our competitors" --watch'));
  }

  function remember(filters) {
    context.setQuery(filters);
    listAddress = location.hash;
  }
  listAddress = location.hash || "#/tasks";

  const drawSoon = throttled(200, draw);
  const loadSoon = throttled(400, load);
  function changed() {
    const now = new URLSearchParams();
    for (const [name, element] of Object.entries(fields)) if (element.value.trim()) now.set(name, element.value.trim());
    for (const state of chosen) now.append("state", state);
    remember(now);
    draw();
    loadSoon();
  }
  fields.q.addEventListener("input", () => {
    const now = new URLSearchParams(location.hash.split("?")[1] ?? "");
    if (fields.q.value.trim()) now.set("q", fields.q.value.trim());
    else now.delete("q");
    remember(now);
    drawSoon();
  });
  for (const field of [fields.agent, fields.queue, fields.label, fields.reason]) field.addEventListener("change", changed);
  for (const field of Object.values(fields)) {
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      if (field !== fields.q) changed();
      list.querySelector("[data-row]")?.focus();
    });
  }

  onLeave(
    subscribe({
      ready: load,
      change: ({ task }) => {
        if (!task) return;
        const before = tasks.get(task.task_id);
        if (!before && !isWanted(task)) return;
        put(task);
        if (isWanted(task) && before?.state !== task.state) announce(`${oneLine(title(task), 60)}: ${known(task.state).word}`);
        drawSoon();
      },
    }),
  );
  onLeave(() => [drawSoon, loadSoon].forEach((call) => call.cancel()));
  // Steps and money come without a change of state.
  const timer = setInterval(readRunning, RUNNING_MS);
  onLeave(() => clearInterval(timer));
  await load();

  async function readRunning() {
    if (document.hidden || ![...tasks.values()].some((task) => task.state === "RUNNING")) return;
    try {
      for (const task of listIn(await api.get("/v1/tasks", { ...filter(), state: ["RUNNING"], page_size: LIVE_LIMIT }), "tasks")) put(task);
      draw();
    } catch {
      // The stream of changes says whether the gateway answers.
    }
  }
}

// What a task is called: its goal, or its function.
export function title(task) {
  return oneLine(task.goal, 240) || task.function?.name || task.task_id;
}

function makeRow(task) {
  const parts = {
    state: h("span.cell.state-cell"),
    title: h("span.goal"),
    why: h("span.why"),
    labels: h("span.labels", labelsOf(task)),
    worker: h("span.cell.worker.dim"),
    step: h("span.cell.num"),
    money: h("span.cell.num"),
    time: timeMark(task.updated_at ?? task.created_at),
  };
  const link = h(
    "a.row",
    { href: `#/tasks/${encodeURIComponent(task.task_id)}`, "data-row": true },
    parts.state,
    h("span.cell.main-cell", h("span.first", task.parent_task_id ? h("span.child", { title: "A sub-agent" }, "↳") : null, parts.title, parts.labels), parts.why),
    parts.worker,
    parts.step,
    parts.money,
    h("span.cell.time", parts.time),
    h("span.cell.id.dim", { title: task.task_id }, shortId(task.task_id)),
  );
  const item = h("div", { role: "listitem" }, link);
  item.parts = parts;
  return item;
}

function labelsOf(task) {
  const labels = Object.entries(task.labels ?? {}).map(([name, value]) => h("span.label", `${name}=${value}`));
  if (task.queue && task.queue !== "default") labels.unshift(h("span.label", { title: "Queue" }, task.queue));
  return labels;
}

function updateRow(item, task) {
  const { parts } = item;
  if (item.sequence === task.sequence && item.state === task.state && item.asked === task.cancel_requested) return;
  Object.assign(item, { sequence: task.sequence, state: task.state, asked: task.cancel_requested });
  fill(parts.state, stateMark(task.state));
  setText(parts.title, title(task));
  setText(parts.why, oneLine(why(task), 200));
  setText(parts.worker, task.worker);
  setText(parts.step, task.step ? count(task.step, "step") : "");
  setText(parts.money, task.cost_usd ? money(task.cost_usd) : "");
  parts.money.title = task.cost_usd ? moneyExact(task.cost_usd) : "";
  updateTime(parts.time, task.updated_at ?? task.created_at);
}
