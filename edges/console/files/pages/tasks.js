// The list of tasks: read once, then kept up to date by the stream of changes.

import { api, listIn } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, keyed, setText } from "../dom.js";
import { count, duration, exact, money, moneyExact, number, oneLine, shortId } from "../format.js";
import { ENDED, isEnded, known, LIVE, stateMark, STATES, why } from "../states.js";
import { announce, button, changing, errorBox, throttled, timeMark, updateTime } from "../ui.js";
import { actButtons } from "./acts.js";
import { actOf, FILTERS, queryOf, Value } from "./filters.js";
import { startTask } from "./task_form.js";

// The address of the list as it was left, with its filters.
export let listAddress = "#/tasks";

const LIVE_LIMIT = 500; // The most that the gateway gives in one page.
const PAGE = 100;
const MOST_READS = 10; // Pages that one search reads by itself until a task is found.
const RUNNING_MS = 5000;
const SHOWN = 300; // Rows at most: a person searches rather than scrolls further.
const FIRST = ["WAITING_USER", "RUNNING"]; // They stand above the rest.

export default async function tasksPage(context) {
  const { root, query, onLeave } = context;
  const tasks = new Map();
  const changedMeanwhile = new Map(); // Since the newest read began: its answer may be older.
  const unmatched = new Set(); // Tasks that changed: only the gateway knows whether they match the filter.
  let moreToken = "";
  let searchedUntil = null; // The gateway read as many tasks as one page may, back to this time of the submit.
  let counts = new Map();
  let problem = null;
  let isRead = false;
  let reads = 0;
  let isReading = false;

  const chosen = new Set(query.getAll("state").flatMap((states) => states.toUpperCase().split(",")).filter(Boolean));
  const fields = new Map(
    FILTERS.map((filter) => {
      const { name, label, size = 20, type = "search", placeholder = filter.rare ? "" : label.toLowerCase() } = filter;
      const value = new Value(filter, query.get(name) ?? "");
      const input = h("input", { type, size, placeholder, value: value.shown, "aria-label": label, "data-search": name === "text" || null, ...(type === "number" && { min: 0, step: "any" }), autocomplete: "off" });
      return [value, input];
    }),
  );
  // What only the address has. The gateway refuses it: without it, an act would be on other tasks.
  const mine = new Set(["state", ...FILTERS.map(({ name }) => name)]);
  let others = [...new Set(query.keys())].filter((name) => !mine.has(name)).map((name) => new Value({ name }, query.getAll(name).join(",")));
  const given = () => [...fields.keys(), ...others].filter((value) => value.text);
  const filter = () => queryOf(given());
  const selected = () => ({ ...(chosen.size > 0 && { state: [...chosen] }), ...actOf(given()) });
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
  const more = button("Show older tasks", { onclick: () => changing(more, () => readOlder(reads)) });
  const summary = h("span.dim");
  const labelled = ([{ filter }, input]) => (filter.rare ? h("label", h("span.dim", filter.label), input) : input);
  const [rare, usual] = [true, false].map((is) => [...fields].filter(([{ filter }]) => Boolean(filter.rare) === is));
  const start = button("Start a task …", { needs: "WRITE", tone: "primary", onclick: () => startTask("Start a task") });
  fill(
    root,
    h("div.head", h("h1", "Tasks"), summary, h("span.buttons", start, actButtons(selected))),
    h("div.filters", { role: "search" }, usual.map(labelled), h("details", { open: rare.some(([value]) => value.text) || null }, h("summary", "More filters"), h("div.filters", rare.map(labelled)))),
    chipBar,
    message,
    rows,
    more,
  );

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
      isRead = true;
      problem = null;
      turnTo(pages[1]);
      if (found().length === 0) await readOlder(read);
    } catch (error) {
      if (read === reads) problem = error;
    }
    if (!context.isCurrent() || read !== reads) return; // A newer filter is read.
    list.removeAttribute("aria-busy");
    isReading = false;
    isRead = true;
    draw();
    if (unmatched.size > 0) matchSoon();
  }

  // Asks which of the tasks that changed match the filter.
  async function match() {
    if (isReading) return; // It is called again at the end.
    const read = reads;
    const asked = [...unmatched].slice(0, PAGE);
    for (const id of asked) unmatched.delete(id);
    const page = await api.get("/v1/tasks", { ...filter(), state: [...chosen], task_id: asked, page_size: PAGE, fresh: "true" });
    if (!context.isCurrent() || read !== reads) return;
    const matching = listIn(page, "tasks");
    const isCut = matching.length > 0 && page.next_page_token;
    for (const id of asked) {
      if (matching.some((task) => task.task_id === id)) continue;
      if (isCut) unmatched.add(id);
      else tasks.delete(id);
    }
    matching.forEach(put);
    draw();
    if (unmatched.size > 0) matchSoon();
  }

  function turnTo(page) {
    moreToken = page.next_page_token ?? "";
    searchedUntil = page.searched_until ?? null;
  }

  // Reads the next page of older tasks; if none of them matches, some more pages.
  async function readOlder(read) {
    for (let left = MOST_READS; left > 0 && moreToken; left -= 1) {
      draw();
      const page = await api.get("/v1/tasks", { ...filter(), state: [...chosen], page_size: PAGE, page_token: moreToken });
      if (!context.isCurrent() || read !== reads) return;
      const older = listIn(page, "tasks");
      older.forEach(put);
      turnTo(page);
      if (older.length > 0) break;
    }
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
    more.hidden = !moreToken || isReading;
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
    if (moreToken) return h("p.empty", `Nothing among the tasks since ${exact(searchedUntil)}${isReading ? ", searching older ones …" : "."}`);
    if (isFiltered()) return h("p.empty", "No task matches.");
    return h("div.empty", h("p", "There is no task yet. Start one here, or in a terminal:"), h("pre", 'tenure submit "Compare the prices of our competitors" --watch'));
  }

  function remember() {
    const now = new URLSearchParams(given().map(({ filter: { name }, text }) => [name, text]));
    for (const state of chosen) now.append("state", state);
    context.setQuery(now);
    listAddress = location.hash;
  }
  listAddress = location.hash || "#/tasks";

  const drawSoon = throttled(200, draw);
  const loadSoon = throttled(400, load);
  const matchSoon = throttled(400, () => match().catch(load)); // It shows what is wrong.
  const countSoon = throttled(2000, () => countAgain().then(draw, () => {})); // The stream of changes says whether the gateway answers.
  function changed() {
    for (const state of chosen) if (!(state in STATES)) chosen.delete(state);
    others = [];
    list.setAttribute("aria-busy", "true"); // Until it is read, it has the tasks of the filter before.
    remember();
    draw();
    loadSoon();
  }
  for (const [value, input] of fields) {
    const take = () => {
      value.shown = input.value;
      changed();
    };
    input.addEventListener(value.filter.name === "text" ? "input" : "change", take);
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      take();
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
        if (isFiltered()) {
          unmatched.add(task.task_id);
          matchSoon();
        }
        countSoon();
        if (before && before.state !== task.state) announce(`${oneLine(title(task), 60)}: ${known(task.state).word}`);
        drawSoon();
      },
    }),
  );
  onLeave(() => [drawSoon, loadSoon, matchSoon, countSoon].forEach((call) => call.cancel()));
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
