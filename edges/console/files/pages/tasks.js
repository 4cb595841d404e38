// The list of tasks: read once, then kept up to date by the stream of changes.

import { api, listIn } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, keyed, setText } from "../dom.js";
import { count, duration, money, moneyExact, number, oneLine, shortId } from "../format.js";
import { ENDED, isEnded, known, LIVE, stateMark, STATES, why } from "../states.js";
import { announce, button, errorBox, throttled, timeMark, updateTime } from "../ui.js";
import { actButtons } from "./acts.js";
import { startTask } from "./task_form.js";

// The address of the list as it was left, with its filters.
export let listAddress = "#/tasks";

const LIVE_LIMIT = 500; // The most that the gateway gives in one page.
const PAGE = 100;
const MAX_NAMED = 500; // Tasks that one act may name.
const RUNNING_MS = 5000;
const SHOWN = 300; // Rows at most: a person searches rather than scrolls further.
const FIRST = ["WAITING_USER", "RUNNING"]; // They stand above the rest.

const labelOf = (text) => [text.split("=")[0], text.split("=").slice(1).join("=")];
const time = (text) => new Date(text).toISOString();

// The filters beside the states, one a row, by the name of the gateway's parameter and of the address. send: the value as
// the gateway takes it. act: as the filter of an act takes it; null: an act names the tasks that were found. rare: below "More".
const FILTERS = [
  { name: "text", label: "Search", size: 36, placeholder: "Search words of goals and results  ( / )" },
  { name: "agent", label: "Agent", size: 14, placeholder: "agent@revision" },
  { name: "queue", label: "Queue", size: 12 },
  { name: "label", label: "Label", size: 16, placeholder: "label=value", send: (text) => labelOf(text).join(":"), act: (text) => Object.fromEntries([labelOf(text)]) },
  { name: "reason", label: "Reason", size: 20, placeholder: "WORKER_LOST", rare: true, send: (text) => text.toUpperCase(), act: (text) => [text.toUpperCase()] },
  { name: "source", label: "Source", size: 16, placeholder: "SCHEDULE/id", rare: true },
  { name: "since", label: "Submitted since", type: "datetime-local", rare: true, send: time, act: time },
  { name: "before", label: "Submitted before", type: "datetime-local", rare: true, send: time, act: time },
  { name: "ended_since", label: "Ended since", type: "datetime-local", rare: true, send: time, act: time },
  { name: "ended_before", label: "Ended before", type: "datetime-local", rare: true, send: time, act: time },
  { name: "model", label: "Model", size: 16, rare: true },
  { name: "min_cost", label: "Least US dollars", type: "number", rare: true, act: Number },
  { name: "max_cost", label: "Most US dollars", type: "number", rare: true, act: Number },
  { name: "min_duration", label: "Least seconds", type: "number", rare: true, act: Number },
  { name: "max_duration", label: "Most seconds", type: "number", rare: true, act: Number },
  { name: "root_task_id", label: "Tree of task", size: 34, placeholder: "id of a task", rare: true, act: null },
  { name: "forked_from_task_id", label: "Forks of task", size: 34, placeholder: "id of a task", rare: true, act: null },
];

export default async function tasksPage(context) {
  const { root, query, onLeave } = context;
  const tasks = new Map();
  const changedMeanwhile = new Map(); // Since the newest read began: its answer may be older.
  let moreToken = "";
  let counts = new Map();
  let problem = null;
  let isRead = false;
  let reads = 0;
  let isReading = false;

  const chosen = new Set(query.getAll("state").filter((state) => state in STATES));
  const fields = new Map(
    FILTERS.map((filter) => {
      const { name, label, size = 20, type = "search", placeholder = filter.rare ? "" : label.toLowerCase() } = filter;
      return [filter, h("input", { type, size, placeholder, value: query.get(name) ?? "", "aria-label": label, "data-search": name === "text" || null, ...(type === "number" && { min: 0, step: "any" }), autocomplete: "off" })];
    }),
  );
  const given = () => [...fields].map(([filter, input]) => [filter, input.value.trim()]).filter(([, text]) => text);
  const isFiltered = () => chosen.size > 0 || given().length > 0;

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

  const head = h("div.row.columns-head", { "aria-hidden": "true" }, COLUMNS.map(([name, title]) => h(`span.cell.${name}`, title)));
  const list = h("div", { role: "list", "aria-label": "Tasks" });
  const rows = h("div.rows", { hidden: true }, head, list);
  const message = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: loadMore }, "Show older tasks");
  const summary = h("span.dim");
  const labelled = ([filter, input]) => (filter.rare ? h("label", h("span.dim", filter.label), input) : input);
  const [rare, usual] = [true, false].map((is) => [...fields].filter(([filter]) => Boolean(filter.rare) === is));
  const start = button("Start a task …", { needs: "WRITE", tone: "primary", onclick: () => startTask("Start a task") });
  fill(
    root,
    h("div.head", h("h1", "Tasks"), summary, h("span.buttons", start, actButtons(selected))),
    h("div.filters", { role: "search" }, usual.map(labelled), h("details", { open: rare.some(([, input]) => input.value) || null }, h("summary", "More filters"), h("div.filters", rare.map(labelled)))),
    chipBar,
    message,
    rows,
    more,
  );

  // The filter of the list, as the gateway takes it.
  const filter = () => Object.fromEntries(given().map(([{ name, send }, text]) => [name, send ? send(text) : text]));

  // The filter of an act on the tasks of this list. What an act cannot filter by selects those that are found here.
  function selected() {
    if (given().some(([{ act }]) => act === null)) return { task_id: found().slice(0, MAX_NAMED).map((task) => task.task_id) };
    const states = chosen.size > 0 ? { state: [...chosen] } : {};
    return { ...states, ...Object.fromEntries(given().map(([{ name, act }, text]) => [name, act ? act(text) : text])) };
  }

  function found() {
    const those = [...tasks.values()].filter((task) => chosen.size === 0 || chosen.has(task.state));
    const isFirst = (task) => FIRST.includes(task.state);
    return those.sort((one, other) => isFirst(other) - isFirst(one) || (one.created_at < other.created_at ? 1 : -1));
  }

  // Reads what runs or waits for a person, and the newest; with a state chosen only what is in it.
  async function load() {
    const read = ++reads;
    isReading = true;
    changedMeanwhile.clear();
    try {
      const common = filter();
      const first = FIRST.filter((state) => chosen.size === 0 || chosen.has(state));
      const pages = await Promise.all([
        first.length > 0 && api.get("/v1/tasks", { ...common, state: first, page_size: LIVE_LIMIT }),
        api.get("/v1/tasks", { ...common, state: [...chosen], page_size: PAGE }),
        countsNow(),
      ]);
      if (!context.isCurrent() || read !== reads) return;
      tasks.clear();
      counts = pages[2];
      if (!isFiltered()) changedMeanwhile.forEach(put);
      for (const task of pages.slice(0, 2).filter(Boolean).flatMap((page) => listIn(page, "tasks"))) put(task);
      moreToken = pages[1].next_page_token ?? "";
      problem = null;
    } catch (error) {
      if (read !== reads) return; // A newer filter is read.
      problem = error;
    }
    list.removeAttribute("aria-busy");
    isReading = false;
    isRead = true;
    draw();
  }

  // How many match in each state, whatever states are chosen.
  async function countsNow() {
    const answer = await api.get("/v1/tasks/count", filter());
    return new Map(listIn(answer, "counts").map((one) => [one.state, one]));
  }

  async function countAgain() {
    const read = reads;
    const now = await countsNow();
    if (read === reads) counts = now;
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
    const shownTasks = found();
    for (const [state, { chip, number: shown }] of chips) {
      const { count: some, at_least: isLeast } = counts.get(state) ?? { count: 0, at_least: false };
      setText(shown, isRead ? `${number(some)}${isLeast ? "+" : ""}` : "");
      chip.classList.toggle("none", some === 0);
    }
    keyed(list, shownTasks.slice(0, SHOWN), (task) => task.task_id, makeRow, updateRow);
    rows.hidden = shownTasks.length === 0;
    setText(summary, isRead && !problem ? total() : "");
    more.hidden = !moreToken;
    if (problem) fill(message, errorBox(problem, load));
    else if (isRead && shownTasks.length === 0) fill(message, empty());
    else if (shownTasks.length > SHOWN) fill(message, h("p.dim", `${SHOWN} of ${number(shownTasks.length)} are shown: search, or choose a state.`));
    else fill(message);
  }

  function total() {
    const those = [...counts.values()].filter((one) => chosen.size === 0 || chosen.has(one.state));
    return `${count(those.reduce((sum, one) => sum + one.count, 0), "task")}${those.some((one) => one.at_least) ? " or more" : ""}`;
  }

  function empty() {
    if (isFiltered()) return h("p.empty", "No task matches.");
    return h("div.empty", h("p", "There is no task yet. Start one here, or in a terminal:"), h("pre", 'tenure submit "Compare the prices of our competitors" --watch'));
  }

  function remember() {
    const now = new URLSearchParams(given().map(([{ name }, text]) => [name, text]));
    for (const state of chosen) now.append("state", state);
    context.setQuery(now);
    listAddress = location.hash;
  }
  listAddress = location.hash || "#/tasks";

  const drawSoon = throttled(200, draw);
  const loadSoon = throttled(400, load);
  const countSoon = throttled(2000, () => countAgain().then(draw, () => {})); // The stream of changes says whether the gateway answers.
  function changed() {
    list.setAttribute("aria-busy", "true"); // Until it is read, it has the tasks of the filter before.
    remember();
    draw();
    loadSoon();
  }
  for (const [{ name }, input] of fields) {
    input.addEventListener(name === "text" ? "input" : "change", changed);
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      changed();
      list.querySelector("[data-row]")?.focus();
    });
  }

  onLeave(
    subscribe({
      ready: load,
      change: ({ task }) => {
        if (!task) return;
        const before = tasks.get(task.task_id);
        if (before || !isFiltered()) put(task);
        if (isReading) changedMeanwhile.set(task.task_id, task);
        if (isFiltered()) loadSoon(); // The gateway knows whether it matches now.
        else countSoon();
        if (before && before.state !== task.state) announce(`${oneLine(title(task), 60)}: ${known(task.state).word}`);
        drawSoon();
      },
    }),
  );
  onLeave(() => [drawSoon, loadSoon, countSoon].forEach((call) => call.cancel()));
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

const COLUMNS = [["state-cell", "State"], ["main-cell", "Goal"], ["agent", "Agent or model"], ["num", "Steps"], ["num", "Cost"], ["num", "Took"], ["time", "Submitted"]];

function makeRow(task) {
  const parts = {
    state: h("span.cell.state-cell"),
    title: h("span.goal"),
    why: h("span.why"),
    agent: h("span.cell.agent.dim"),
    step: h("span.cell.num"),
    money: h("span.cell.num"),
    took: h("span.cell.num.took", { "data-since": true }),
    time: timeMark(task.created_at),
  };
  const link = h(
    "a.row",
    { href: `#/tasks/${encodeURIComponent(task.task_id)}`, "data-row": true },
    parts.state,
    h("span.cell.main-cell", h("span.first", task.parent_task_id ? h("span.child", { title: "A sub-agent" }, "↳") : null, parts.title, h("span.labels", labelsOf(task))), parts.why),
    parts.agent,
    parts.step,
    parts.money,
    parts.took,
    h("span.cell.time", { title: task.task_id }, parts.time),
  );
  const item = h("div", { role: "listitem" }, link);
  item.parts = parts;
  parts.took.addEventListener("tick", () => !isEnded(item.state) && showTook(item));
  return item;
}

function labelsOf(task) {
  const labels = Object.entries(task.labels ?? {}).map(([name, value]) => h("span.label", `${name}=${value}`));
  if (task.queue && task.queue !== "default") labels.unshift(h("span.label", { title: "Queue" }, task.queue));
  return labels;
}

function showTook(item) {
  setText(item.parts.took, duration(((item.ended ? Date.parse(item.ended) : Date.now()) - item.created) / 1000));
}

function updateRow(item, task) {
  const { parts } = item;
  if (item.sequence === task.sequence && item.state === task.state && item.asked === task.cancel_requested) return;
  Object.assign(item, { sequence: task.sequence, state: task.state, asked: task.cancel_requested, ended: task.ended_at, created: Date.parse(task.created_at) });
  fill(parts.state, stateMark(task.state));
  parts.state.title = task.worker ? `on ${task.worker}` : "";
  setText(parts.title, title(task));
  setText(parts.why, oneLine(why(task), 200));
  setText(parts.agent, task.agent || task.function?.name || task.model);
  setText(parts.step, task.step ? number(task.step) : "");
  setText(parts.money, task.cost_usd ? money(task.cost_usd).replace("less than ", "< ") : "");
  parts.money.title = task.cost_usd ? moneyExact(task.cost_usd) : "";
  showTook(item);
  updateTime(parts.time, task.created_at);
}
