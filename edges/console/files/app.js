// The console's frame: who is signed in, the navigation, and the page of the address.

import { allOf, api, ApiError, currentTenant, listIn, useTenant, whenUnauthenticated } from "./api.js";
import { followChanges, stopChanges, subscribe } from "./changes.js";
import { fill, h, setText } from "./dom.js";
import { count } from "./format.js";
import { listenForKeys, showKeys } from "./keys.js";
import { isEnded } from "./states.js";
import { errorBox, may, notice, throttled, usePermissions } from "./ui.js";

// name in the address → title, module, the permission without which the page shows nothing.
const PAGES = {
  tasks: ["Tasks", "./pages/tasks.js", "READ"],
  approvals: ["Approvals", "./pages/approvals.js", "READ"],
  "in-doubt": ["In doubt", "./pages/in_doubt.js", "TENANT_ADMIN"],
  effects: ["Effects", "./pages/effects.js", "TENANT_ADMIN"],
  aging: ["Aging", "./pages/aging.js", "TENANT_ADMIN"],
  workers: ["Workers", "./pages/workers.js", "OPERATE"],
  schedules: ["Schedules", "./pages/schedules.js", "READ"],
  webhooks: ["Webhooks", "./pages/webhooks.js", "READ"],
  usage: ["Usage", "./pages/usage.js", "READ"],
  audit: ["Audit", "./pages/audit.js", "OPERATE"],
};
const main = document.getElementById("main");
let me = null;
let cleanups = [];
let visit = 0;

async function start() {
  whenUnauthenticated(() => {
    if (me === null && document.querySelector(".sign-in")) return; // The form itself says what is wrong.
    if (me !== null) notice("The session has ended: sign in again.", "warn");
    signedOut();
  });
  listenForKeys();
  badges();
  addEventListener("hashchange", show);
  // The address of the page is in the fragment, so this link cannot be followed as usual.
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  await identify();
}

async function identify() {
  try {
    me = await api.get("/v1/me");
  } catch (error) {
    if (error.status !== 401) fill(main, errorBox(error, identify));
    return;
  }
  usePermissions(me.permissions);
  useTenant(!me.any_tenant ? "" : sessionStorage.getItem("tenant") ?? "");
  await frame();
  followChanges();
  show();
}

// Signing in.

function signedOut() {
  me = null;
  stopChanges();
  leave();
  fill(document.getElementById("nav"));
  fill(document.getElementById("who"));
  document.title = "Sign in · Tenure";
  const key = h("input", { id: "api-key", name: "api_key", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const error = h("p.error", { role: "alert" });
  const form = h(
    "form.sign-in",
    h("h1", "Sign in"),
    h("label", { for: "api-key" }, "API key, or a token of your identity provider"),
    key,
    h("p.help", "You may do here what the key may do. It is kept in a cookie that scripts cannot read."),
    error,
    h("button.primary", { type: "submit" }, "Sign in"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await api.post("/console/session", { api_key: key.value.trim() });
      await identify();
    } catch (failure) {
      setText(error, failure.message);
      key.select();
    }
  });
  fill(main, form);
  key.focus();
}

async function signOut() {
  await api.delete("/console/session").catch(() => {});
  signedOut();
}

// The frame.

async function frame() {
  fill(
    document.getElementById("nav"),
    Object.entries(PAGES).map(([name, [title, , needs]]) =>
      h("a", { href: `#/${name}`, id: `nav-${name}`, class: may(needs) ? null : "locked" }, title, h("span.badge", { id: `badge-${name}` })),
    ),
  );
  fill(
    document.getElementById("who"),
    h("span.link-state", { id: "link-state", role: "status" }),
    me.any_tenant ? await tenantChoice() : h("span", { title: "Your tenant" }, me.tenant),
    h("span.dim.subject", { title: `Permissions: ${me.permissions.join(", ")}` }, me.subject),
    h("button.plain", { type: "button", "aria-label": "Keys", title: "Keys (?)", onclick: showKeys }, "?"),
    me.authenticated && h("button.plain", { type: "button", onclick: signOut }, "Sign out"),
  );
}

// A caller of no tenant may look at any.
async function tenantChoice() {
  let names = [];
  if (may("OPERATE")) {
    names = (await allOf("/v1/tenants", "tenants", { page_size: 500 }).catch(() => [])).map((one) => one.tenant);
  }
  const chosen = currentTenant() || me.tenant || "default";
  const options = [...new Set([chosen, ...names])].sort();
  if (options.length === 1) return h("span", { title: "The tenant" }, chosen);
  const select = h("select", { "aria-label": "Tenant" }, options.map((name) => h("option", { value: name, selected: name === chosen }, name)));
  select.addEventListener("change", () => {
    sessionStorage.setItem("tenant", select.value);
    useTenant(select.value);
    followChanges();
    refreshBadges();
    show();
  });
  return select;
}

const LINK_WORDS = { live: "live", connecting: "connecting …", waiting: "reconnecting …", failed: "not live", ended: "not live" };

// Badges: how many people are waited for.

const refreshBadges = throttled(2000, async () => {
  refreshStops();
  try {
    const waits = listIn(await api.get("/v1/waits", { page_size: 100 }), "tasks").filter((task) => task.wait);
    badge("approvals", waits.length, "task waits for a person", "tasks wait for a person");
    if (!may("TENANT_ADMIN")) return;
    const calls = listIn(await api.get("/v1/calls-in-doubt", { page_size: 100 }), "calls");
    badge("in-doubt", calls.length, "call in doubt", "calls in doubt");
  } catch {
    // The page shows what is wrong; a badge only helps.
  }
});

// The banner of the stops in force, on every page of an operator.
async function refreshStops() {
  const element = document.getElementById("stops");
  if (!element || !may("OPERATE")) return;
  const stops = listIn(await api.get("/v1/stops").catch(() => ({ stops: [] })), "stops");
  fill(element, stops.map((stop) => h("p", `Stopped: ${stoppedText(stop)} · ${stop.stopped_by}: ${stop.reason} (tenure admin stops)`)));
  element.hidden = stops.length === 0;
}

function stoppedText(stop) {
  const named = ["tool", "agent", "queue", "tenant"].filter((kind) => stop[kind]).map((kind) => `${kind} ${stop[kind]}`);
  return named.join(", ") || "everything";
}

function badge(name, value, thing, things) {
  const element = document.getElementById(`badge-${name}`);
  if (!element) return;
  const shown = value === 0 ? "" : value >= 100 ? "99+" : String(value);
  setText(element, shown);
  element.title = shown && `${shown} ${value === 1 ? thing : things}`;
}

function badges() {
  subscribe({
    ready: refreshBadges,
    change: (change) => {
      if (change.state === "WAITING_USER" || change.state === "QUEUED" || isEnded(change.state)) refreshBadges();
    },
    status: (status) => {
      const element = document.getElementById("link-state");
      if (!element) return;
      setText(element, LINK_WORDS[status] ?? status);
      element.className = `link-state ${status}`;
    },
  });
}

// The pages.

function leave() {
  visit += 1;
  for (const cleanup of cleanups) cleanup();
  cleanups = [];
}

async function show() {
  if (me === null) return;
  leave();
  const current = visit;
  const [address, queryText = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = address.split("/").filter(Boolean).map(decodeURIComponent);
  const name = parts[0] in PAGES ? parts[0] : "tasks";
  const [title, module, needs] = PAGES[name];
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.id === `nav-${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} · Tenure`;
  if (!may(needs)) {
    fill(main, h("h1", title), h("p.empty", `You may not see this page: it needs the permission ${needs}. You have ${me.permissions.join(", ") || "none"}.`));
    return;
  }
  const context = {
    root: fill(h("div.page")),
    parts: parts.slice(1),
    query: new URLSearchParams(queryText),
    me,
    isCurrent: () => current === visit,
    // Work that ends with the page.
    onLeave: (cleanup) => (context.isCurrent() ? cleanups.push(cleanup) : cleanup()),
    title: (text) => {
      if (context.isCurrent()) document.title = `${text} · Tenure`;
    },
    // Changes the query of the address, without a new visit.
    setQuery: (query) => {
      const text = query.toString();
      history.replaceState(null, "", `#/${address || "tasks"}${text ? `?${text}` : ""}`);
    },
  };
  fill(main, context.root);
  main.scrollTop = 0;
  scrollTo(0, 0);
  try {
    const page = await import(name === "tasks" && parts.length > 1 ? "./pages/task.js" : module).catch((error) => {
      throw error instanceof TypeError ? new ApiError(0, "UNREACHABLE", "the gateway does not answer") : error;
    });
    if (context.isCurrent()) await page.default(context);
  } catch (error) {
    if (context.isCurrent() && error.status !== 401) fill(context.root, h("h1", title), errorBox(error, show));
    if (!(error.status >= 0)) console.error(error); // A mistake of ours.
  }
}

start();
