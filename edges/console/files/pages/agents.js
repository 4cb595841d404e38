// What runs a task: an agent without code, an agent in Python or a function. Each can do other things.

import { api, path } from "../api.js";

// Returns the definition that runs the task: its `kind` is MODEL, PYTHON or FUNCTION, and "" if it is not known, as of code
// that no worker has registered yet. Then the gateway says what may be done.
export async function definitionOf(task) {
  const name = task.agent || task.function?.name;
  if (!name) return { kind: "MODEL" };
  try {
    const { agent, revisions } = await api.get(path`/v1/agents/${name}`, { revision: task.agent_revision });
    return (task.agent_revision && revisions[0]?.definition) || { kind: agent.kind };
  } catch {
    return { kind: "" };
  }
}

// Why the task takes no message; "" if it may take one.
export function noReader(task, definition) {
  if (task.undo_of) return "An undo takes no messages.";
  return definition.kind === "FUNCTION" ? "A function takes no messages." : "";
}

// What a task was submitted with, as the values of the form. `kept`: what the form does not show.
export function valuesOf(task, definition) {
  const { limits, policy, priority } = task;
  const kept = { priority, policy, ...(limits.money_cap === "NONE_SUBMITTED" && { no_max_cost: true }) };
  const common = { goal: task.goal, labels: task.labels, queue: task.queue, max_tokens: limits.max_tokens, max_steps: limits.max_steps, timeout: limits.timeout_seconds };
  if (limits.money_cap !== "DEFAULT" && limits.max_cost_usd) common.max_cost = limits.max_cost_usd;
  const code = task.agent || task.function?.name;
  const input = task.function?.input ?? undefined;
  if (task.function && (definition.kind === "FUNCTION" || !task.goal.trim())) return { ...common, function: code, input, kept };
  const asked = task.approve_tools.filter((name) => !definition.approve_tools?.includes(name)); // by the submit itself
  if (code) return { ...common, agent: code, input, approve_tools: asked, kept };
  const parameters = Object.fromEntries(Object.entries(task.parameters ?? {}).filter(([, value]) => value !== null && value !== "" && value !== 0));
  if (task.max_output_tokens) parameters.max_output_tokens = task.max_output_tokens;
  return { ...common, model: task.model, system: task.system || undefined, tools: task.tools, approve_tools: task.approve_tools, result: task.result_schema ?? undefined, kept: { ...kept, ...parameters, ...(task.tools?.length === 0 && { tools: [] }) } };
}
