// What a tenant used: tokens and money by day and by model, and its quotas.

import { allOf, api, currentTenant, listIn, path } from "../api.js";
import { subscribe } from "../changes.js";
import { fill, h, setText } from "../dom.js";
import { allTokens, count, duration, money, moneyExact, number, words } from "../format.js";
import { errorBox, throttled } from "../ui.js";
import { bars } from "./plot.js";
import { title } from "./tasks.js";
import { section } from "./workers.js";

const DAY_MS = 86_400_000;
const PAGE = 500;
const MOST_ROOTS = 20;

export default async function usagePage(context) {
  const tenant = currentTenant() || context.me.tenant || "default";
  const days = h("select", { "aria-label": "Span", "data-search": true }, [["7", "7 days"], ["30", "30 days"], ["90", "90 days"], ["365", "a year"]].map(([value, name]) => h("option", { value }, name)));
  days.value = ["7", "30", "90", "365"].includes(context.query.get("days")) ? context.query.get("days") : "30";
  const message = h("div");
  const summary = h("p.sum");
  const plots = h("div.plots");
  const models = section("By model", "No call was settled in this span.", [
    { name: "Model", cell: (one) => h("b", one.key || "–") },
    { name: "Calls", class: "num", cell: (one) => number(one.calls) },
    { name: "Tokens", class: "num", cell: (one) => h("span", { title: `${number(one.usage.input_tokens)} in, ${number(one.usage.cache_read_input_tokens)} from the cache, ${number(one.usage.output_tokens)} out` }, number(allTokens(one.usage))) },
    { name: "Cost", class: "num", cell: (one) => h("span", { title: moneyExact(one.cost_usd) }, money(one.cost_usd)) },
    { name: "Lost calls", class: "num", cell: (one) => number(one.lost_calls) },
    { name: "Of unknown price", class: "num", cell: (one) => number(one.unpriced_calls) },
    { name: "Simulated", class: "num", cell: (one) => number(one.simulated_calls) },
  ]);
  const roots = section("The dearest tasks", "No call was settled in this span.", [
    { name: "Root task", class: "wrap", cell: (one) => h("a", { href: `#/tasks/${encodeURIComponent(one.key)}`, "data-row": true }, one.goal || one.key) },
    { name: "Calls", class: "num", cell: (one) => number(one.calls) },
    { name: "Tokens", class: "num", cell: (one) => number(allTokens(one.usage)) },
    { name: "Cost", class: "num", cell: (one) => h("span", { title: moneyExact(one.cost_usd) }, money(one.cost_usd)) },
  ]);
  const quotas = section("Quotas", "This tenant has no quotas.", [
    { name: "Quota", cell: (one) => h("b", words(one.kind)) },
    { name: "Used", class: "num", cell: (one) => amount(one, one.used, one.used_usd) },
    { name: "Limit", class: "num", cell: (one) => (limit(one) === null ? "no limit" : amount(one, one.limit, one.limit_usd)) },
    { name: "", cell: meter },
    { name: "Beyond it", cell: (one) => words(one.policy) },
    { name: "State", cell: (one) => (one.hard_reached ? h("span.state.bad", "✗ reached") : one.soft_reached ? h("span.state.warn", "! near") : h("span.state.ok", "✓ free")) },
    { name: "Free again", cell: (one) => (one.free_in_seconds === null ? "–" : `in ${duration(one.free_in_seconds)}`) },
  ]);
  const clearPlots = () => {
    for (const figure of plots.children) figure.dispose?.();
    fill(plots);
  };
  fill(context.root, h("div.head", h("h1", `Usage of ${tenant}`), days), message, summary, plots, quotas.element, models.element, roots.element);

  const load = throttled(5000, async () => {
    try {
      context.setQuery(new URLSearchParams({ days: days.value }));
      const since = new Date(Math.floor(Date.now() / DAY_MS - Number(days.value) + 1) * DAY_MS).toISOString();
      const route = path`/v1/tenants/${tenant}/usage`;
      const usage = (by) => allOf(route, "sums", { by, since, page_size: PAGE });
      const [byDay, byModel, ofRoots, info] = await Promise.all([usage("DAY"), usage("MODEL"), api.get(route, { by: "ROOT", since, dearest_first: true, page_size: MOST_ROOTS }), api.get(path`/v1/tenants/${tenant}`)]);
      const topRoots = await withGoals(listIn(ofRoots, "sums"));
      if (!context.isCurrent()) return;
      fill(message);
      const sum = (pick) => byModel.reduce((total, one) => total + pick(one), 0);
      const unpriced = sum((one) => one.unpriced_calls);
      setText(summary, `${money(sum((one) => one.cost_usd))} for ${number(sum((one) => allTokens(one.usage)))} tokens in ${count(sum((one) => one.calls), "model call")}${unpriced ? `; ${count(unpriced, "call")} of unknown price` : ""}. Days are in UTC.`);
      const dayKeys = Array.from({ length: Number(days.value) }, (_, index) => new Date(Date.parse(since) + index * DAY_MS).toISOString().slice(0, 10));
      const ofDay = new Map(byDay.map((one) => [one.key, one]));
      clearPlots();
      plots.append(
        bars("Cost by day", dayKeys, dayKeys.map((day) => ofDay.get(day)?.cost_usd ?? 0), money),
        bars("Tokens by day", dayKeys, dayKeys.map((day) => (ofDay.has(day) ? allTokens(ofDay.get(day).usage) : 0)), number),
      );
      models.show(byModel.sort((one, other) => other.cost_usd - one.cost_usd || allTokens(other.usage) - allTokens(one.usage)), (one) => JSON.stringify(one));
      roots.show(topRoots, (one) => JSON.stringify(one));
      quotas.show(info.quotas, (one) => JSON.stringify(one));
    } catch (error) {
      if (context.isCurrent()) fill(message, errorBox(error, load));
    }
  });
  const choose = () => {
    load.cancel(); // another span is shown at once
    load();
  };
  days.addEventListener("change", choose);
  context.onLeave(load.cancel);
  context.onLeave(clearPlots);
  context.onLeave(subscribe({ ready: load, change: load }));
  load();
}

// Tasks that were pruned have no goal any more.
async function withGoals(sums) {
  if (sums.length === 0) return sums;
  const tasks = listIn(await api.get("/v1/tasks", { task_id: sums.map((one) => one.key), page_size: MOST_ROOTS }), "tasks");
  const goals = new Map(tasks.map((task) => [task.task_id, title(task)]));
  return sums.map((one) => ({ ...one, goal: goals.get(one.key) }));
}

const isMoney = (quota) => quota.limit_usd !== null || quota.used_usd !== null;
const limit = (quota) => (isMoney(quota) ? quota.limit_usd : quota.limit);
const amount = (quota, plain, usd) => (isMoney(quota) ? h("span", { title: moneyExact(usd) }, money(usd)) : number(plain));

function meter(quota) {
  const most = limit(quota);
  if (!most) return null;
  return h("meter", { min: 0, max: most, low: most * 0.8, high: most * 0.99, optimum: 0, value: (isMoney(quota) ? quota.used_usd : quota.used) ?? 0, "aria-label": `${words(quota.kind)} used` });
}
