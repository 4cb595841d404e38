// Calls the gateway's HTTP routes with the session cookie of this origin. No other host is ever asked.

import { parse, stringify } from "./json.js";

export class ApiError extends Error {
  // status 0: the gateway did not answer.
  constructor(status, code, message, retryAfter = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

let tenant = "";
let onUnauthenticated = () => {};

export function useTenant(name) {
  tenant = name;
}

export const currentTenant = () => tenant;

export function whenUnauthenticated(callback) {
  onUnauthenticated = callback;
}

// Returns the URL of a route: url("/v1/tasks", {state: ["RUNNING"], queue: ""}). Empty values are left out.
export function url(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== "" && item !== null && item !== undefined) search.append(name, item);
    }
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

// Returns a path with its parts escaped: path`/v1/tasks/${id}`.
export function path(strings, ...values) {
  return strings.reduce((made, part, index) => made + encodeURIComponent(values[index - 1]) + part);
}

export const tenantHeaders = () => (tenant ? { "Tenure-Tenant": tenant } : {});

async function request(method, address, { body, headers = {}, signal, raw = false } = {}) {
  const init = { method, signal, credentials: "same-origin", cache: "no-store", redirect: "error" };
  init.headers = { Accept: "application/json", ...tenantHeaders(), ...headers };
  if (body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = stringify(body);
  }
  let response;
  try {
    response = await fetch(address, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "UNREACHABLE", "the gateway does not answer");
  }
  if (!response.ok) throw await errorOf(response);
  if (raw) return response;
  return response.status === 204 ? null : parse(await response.text());
}

// Reads application/problem+json.
export async function errorOf(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // No JSON: the status says all that is known.
  }
  const error = problemError({ detail: `the gateway answered ${response.status}`, ...problem, status: response.status });
  if (response.status === 401) onUnauthenticated(error);
  return error;
}

// A problem as an error: {status, code, detail, hint, violations: [{field, description}], retry_after_seconds}.
export function problemError(problem) {
  const violations = (problem.violations ?? []).map((one) => `${one.field} ${one.description}`).join("; ");
  const message = violations && !problem.detail?.includes(violations) ? violations : problem.detail;
  return new ApiError(problem.status ?? 500, problem.code ?? "", message, Math.ceil(problem.retry_after_seconds ?? 0));
}

// Makes a repeat of a request harmless: the gateway answers it as the first.
export function requestId() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return `console-${Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

export const api = {
  get: (route, query, options) => request("GET", url(route, query), options),
  post: (route, body = {}, options = {}) => request("POST", route, { body, ...options }),
  patch: (route, body = {}, options = {}) => request("PATCH", route, { body, ...options }),
  delete: (route, options) => request("DELETE", route, options),
  // A file of a task: a Response.
  file: (route, options) => request("GET", route, { raw: true, ...options }),
};

// Returns the list in an answer that is {"tasks": […], "next_page_token": ""}.
export function listIn(answer, name) {
  if (Array.isArray(answer)) return answer;
  return answer?.[name] ?? Object.values(answer ?? {}).find(Array.isArray) ?? [];
}

// Returns the items of all pages of a list.
export async function allOf(route, name, query = {}) {
  const items = [];
  let token = "";
  do {
    const page = await api.get(route, { ...query, page_token: token });
    items.push(...listIn(page, name));
    token = page.next_page_token ?? "";
  } while (token);
  return items;
}
