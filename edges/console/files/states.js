// The states of a task: their words, their signs and their tones. A tone is a colour of console.css.

import { h } from "./dom.js";
import { clock, count, duration } from "./format.js";

export const STATES = {
  RUNNING: { word: "running", sign: "●", tone: "run" },
  QUEUED: { word: "queued", sign: "○", tone: "dim" },
  WAITING_USER: { word: "waits for a person", sign: "◐", tone: "warn" },
  WAITING_EXTERNAL: { word: "waits", sign: "◐", tone: "warn" },
  RETRY_SCHEDULED: { word: "retry scheduled", sign: "↻", tone: "warn" },
  SUCCEEDED: { word: "succeeded", sign: "✓", tone: "ok" },
  FAILED: { word: "failed", sign: "✗", tone: "bad" },
  TIMED_OUT: { word: "timed out", sign: "✗", tone: "bad" },
  CANCELLED: { word: "cancelled", sign: "✗", tone: "dim" },
  COST_EXCEEDED: { word: "cost exceeded", sign: "✗", tone: "bad" },
};
export const LIVE = ["RUNNING", "QUEUED", "WAITING_USER", "WAITING_EXTERNAL", "RETRY_SCHEDULED"];
export const ENDED = ["SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELLED", "COST_EXCEEDED"];

export const isEnded = (state) => ENDED.includes(state);
export const known = (state) => STATES[state] ?? { word: String(state ?? "").toLowerCase().replaceAll("_", " "), sign: "·", tone: "dim" };

// ● running
export function stateMark(state, { suffix = "" } = {}) {
  const { word, sign, tone } = known(state);
  return h(`span.state.${tone}`, { title: state }, h("span.sign", { "aria-hidden": "true" }, sign), ` ${word}${suffix}`);
}

// Why the task stands where it does, in few words; "" where the state says enough.
export function why(task) {
  if (task.cancel_requested && !isEnded(task.state)) return "an end is requested and will be carried out";
  if (task.wait) return waitLine(task.wait);
  if (task.reason === "TOOL_IN_DOUBT") return "a call may or may not have happened";
  if (task.in_line) return "waits for other tasks of its source";
  if (task.state === "SUCCEEDED" || task.state === "RUNNING") return "";
  return task.message || "";
}

export function waitLine(wait) {
  switch (wait.kind) {
    case "TOOL_APPROVAL":
      return wait.calls.length > 0 ? `asks to make ${wait.calls.length} calls` : `asks to call ${wait.tool}`;
    case "BUDGET":
      return "asks for more budget";
    case "SUB_AGENTS":
      return `for ${wait.sub_agent_task_ids.length === 1 ? "1 sub-agent" : `${wait.sub_agent_task_ids.length} sub-agents`}`;
    case "EVENT":
      return `for the event ${wait.correlation_id}`;
    default:
      return wait.question || wait.context || "for an answer";
  }
}

// What is known of the lease of a lost claim; null: nothing.
export function leaseEnd(end) {
  if (!end) return null;
  const last = end.renewals.at(-1);
  const renewed = last ? `It renewed its lease ${count(end.renewal_count, "time")}, last at ${end.renewals.map(clock).join(", ")}` : "It did not renew its lease after it attached to its coordinator";
  const unanswered = end.unanswered_at ? `; etcd did not answer the renewal of ${clock(end.unanswered_at)}` : "";
  const after = last && end.lost_at ? `, ${duration((new Date(end.lost_at) - new Date(last)) / 1000)} later` : "";
  return `${renewed}${unanswered}${end.lost_at ? `; lost at ${clock(end.lost_at)}${after}` : ""}.`;
}
