// The form that answers a wait: what exactly would be done, who may answer, until when, and the answers.

import { api, path, requestId } from "../api.js";
import { h, setText, visible } from "../dom.js";
import { money, moneyExact, number, pretty, relative } from "../format.js";
import { grantOf } from "../grants.js";
import { parse, stringify } from "../json.js";
import { button, changing, dialog, errorText, facts, field, notice, timeMark } from "../ui.js";
import { textsIn } from "./contents.js";

const ANSWERABLE = ["APPROVAL", "QUESTION", "TOOL_APPROVAL", "BUDGET", "OPERATOR", "NO_PROGRESS"];
const HEADINGS = {
  TOOL_APPROVAL: "May the agent make this call?",
  APPROVAL: "The agent asks for approval",
  QUESTION: "The agent asks a question",
  BUDGET: "The task asks for more budget",
  OPERATOR: "An operator lets the task wait",
  NO_PROGRESS: "The agent repeats itself",
  EVENT: "Waits for an event",
  SUB_AGENTS: "Waits for its sub-agents",
};

export const isAnswerable = (wait) => ANSWERABLE.includes(wait.kind);

// Returns a section for the wait of a task. onAnswered(task) is called with the task after the answer.
export function waitPanel(task, { onAnswered = () => {}, heading = "h2" } = {}) {
  const wait = task.wait;
  const id = `wait-${wait.wait_id}`;
  const panel = h("section.wait", { "aria-labelledby": id }, h(heading, { id }, HEADINGS[wait.kind] ?? "Waits"));
  const isGenerated = wait.tool && wait.question === `May ${wait.tool} be called?`; // The heading asks the same.
  if (wait.question && !isGenerated) panel.append(h("p.question", visible(wait.question)));
  if (wait.context) panel.append(h("p.context", visible(wait.context)));
  if (wait.reference) panel.append(h("p.dim", `Reference: ${visible(wait.reference)}`));
  for (const call of callsOf(wait)) {
    // Never cut: a person must see what they allow.
    panel.append(h("div.would-do", h("p", "It would call ", h("b.tool", visible(call.tool)), wait.calls.length > 0 ? ` (${call.call_id})` : "", " with"), h("pre.arguments", visible(pretty(call.arguments))), textsIn(call.arguments).map(([name, text]) => h("details", h("summary", `${visible(name)}, line by line`), h("pre", visible(text))))));
  }
  if (hasUnseen(wait)) panel.append(h("p.warn.unseen", "The text has characters that cannot be seen, or that change the order in which it is read. They are shown as \\u and their number."));
  if (wait.budget_need) panel.append(need(wait.budget_need, task.budget));
  panel.append(
    facts(
      wait.kind === "EVENT" ? ["Event", h("code", wait.correlation_id)] : null,
      isAnswerable(wait) ? ["Who may answer", whoMay(wait)] : null,
      wait.deadline_at ? ["Deadline", timeMark(wait.deadline_at), ` – then ${deadlineWords(wait)}`] : ["Deadline", "none"],
      nextStep(task) ? ["Without an answer", nextStep(task)] : null,
      wait.call_digest ? ["Digest", h("code.digest", { title: "The answer is bound to this call and these arguments." }, wait.call_digest)] : null,
      ["Waits since", timeMark(wait.begun_at)],
    ),
  );
  if (isAnswerable(wait)) panel.append(answers(task, onAnswered));
  return panel;
}

// The calls that need approval.
const callsOf = (wait) => (wait.calls.length > 0 ? wait.calls : wait.tool ? [wait] : []);

// Whether a person would read another text than the one that they decide on.
const hasUnseen = (wait) => [wait.question, wait.context, wait.reference, ...callsOf(wait).flatMap((call) => [call.tool, call.arguments ? pretty(call.arguments) : ""])].some((text) => text && visible(text) !== text);

function whoMay(wait) {
  const named = (wait.approvers ?? []).map((one) => (typeof one === "string" ? one : one.name ?? one.subject ?? one.email ?? JSON.stringify(one)));
  const who = named.length > 0 ? named.join(", ") : "anyone with the permission APPROVE";
  return wait.assignee ? `${who}; assigned to ${wait.assignee}` : who;
}

const deadlineWords = (wait) => (wait.at_deadline === "GO_ON" ? "the agent goes on without an answer" : "the task times out");

// The step of the escalation that is due next.
function nextStep(task) {
  const steps = task.policy?.escalations?.[task.wait.kind === "EVENT" ? "event" : "person"] ?? [];
  const begun = Date.parse(task.wait.begun_at);
  const step = steps.find((one) => begun + one.after_seconds * 1000 > Date.now());
  if (!step) return "";
  const when = relative(new Date(begun + step.after_seconds * 1000).toISOString());
  const what = { ASSIGNEE: `it is assigned to ${step.target}`, QUEUE: `the task goes on in queue ${step.target}`, PRIORITY: `the task goes on with priority ${step.target}`, CLOSE_OUT: "the task is closed out", APPROVER: `${step.target} may answer too`, REMIND_WEBHOOK: `the webhook ${step.target} sends a reminder` }[step.action] ?? "it is reported";
  return `${when} ${what}`;
}

function need(need, budget) {
  const whose = need.own_cap ? "its own cap" : "the cap of its tree";
  const needed = [need.needed_tokens ? `${number(need.needed_tokens)} tokens` : "", need.needed_cost_usd ? moneyExact(need.needed_cost_usd) : ""].filter(Boolean).join(" and ");
  const suggested = [need.suggested_tokens ? `${number(need.suggested_tokens)} tokens` : "", need.suggested_cost_usd ? moneyExact(need.suggested_cost_usd) : ""].filter(Boolean).join(" and ");
  return facts(
    ["At its cap", `${whose}: ${number(budget.used_tokens)} of ${number(budget.max_tokens)} tokens, ${money(budget.used_cost_usd)}${budget.max_cost_usd ? ` of ${moneyExact(budget.max_cost_usd)}` : ""}`],
    ["The next call needs", needed || "–"],
    ["Suggested", suggested ? `${suggested} more` : "–"],
  );
}

function answers(task, onAnswered) {
  const wait = task.wait;
  const comment = h("input", { name: "comment", maxlength: 4000, autocomplete: "off" });
  const error = h("p.error", { role: "alert" });
  const buttons = h("div.buttons");
  const form = h("form.answer", { onsubmit: (event) => event.preventDefault() });
  const once = requestId();

  async function send(element, answer, said) {
    await changing(element, async () => {
      try {
        setText(error, "");
        const body = { wait_id: wait.wait_id, ...answer };
        if (wait.call_digest && !answer.calls) body.call_digest = wait.call_digest;
        if (comment.value.trim()) body.comment = comment.value.trim();
        const answered = await api.post(path`/v1/tasks/${task.task_id}/resume`, body, { headers: { "Idempotency-Key": once } });
        notice(said);
        onAnswered(answered?.task ?? answered);
      } catch (failure) {
        setText(error, errorText(failure));
        if (["WRONG_STATE", "WAIT_OVER", "OTHER_CALL"].includes(failure.code)) onAnswered(null); // Another person was faster.
      }
    });
  }

  const choice = (label, answer, said, tone = "") => {
    const element = button(label, { needs: "APPROVE", tone, onclick: () => send(element, answer(), said) });
    return element;
  };
  const decide = (decision) => () => ({ decision });

  if (wait.calls.length > 0) {
    const chosen = wait.calls.map((call) => ({ call, select: h("select", { "aria-label": `${call.tool} (${call.call_id})` }, h("option", { value: "" }, "Decide later"), h("option", { value: "allow" }, "Approve"), h("option", { value: "deny" }, "Reject")) }));
    for (const { call, select } of chosen) form.append(field(`${visible(call.tool)} (${call.call_id})`, select));
    const decisions = (decisionOf) => ({ calls: chosen.map(({ call, select }) => ({ call_id: call.call_id, call_digest: call.call_digest, decision: decisionOf(select) })).filter((one) => one.decision) });
    const chosenOnes = button("Send the chosen ones", { needs: "APPROVE", onclick: () => {
      const answer = decisions((select) => select.value);
      if (answer.calls.length > 0) send(chosenOnes, answer, "Answered: the other calls wait on.");
      else setText(error, "Choose an answer for one of the calls.");
    } });
    buttons.append(choice("Approve all", () => decisions(() => "allow"), "Approved: the calls run.", "primary"), choice("Reject all", () => decisions(() => "deny"), "Rejected: the agent reads that.", "danger"), chosenOnes);
    form.append(field("Comment", comment, "The agent reads it, and it is recorded."), error, buttons);
    return form;
  }
  switch (wait.kind) {
    case "TOOL_APPROVAL": {
      const edit = button("Edit the arguments …", { needs: "APPROVE", onclick: () => editArguments(wait, (edited) => send(edit, { decision: "edit", edited_arguments: edited }, "Allowed with the arguments that you wrote.")) });
      buttons.append(choice("Approve", decide("allow"), "Approved: the call runs.", "primary"), choice("Reject", decide("deny"), "Rejected: the agent reads that.", "danger"), edit);
      break;
    }
    case "BUDGET": {
      const tokens = h("input", { type: "number", min: 0, step: 1, value: wait.budget_need?.suggested_tokens || "", size: 12 });
      const usd = h("input", { type: "number", min: 0, step: "any", value: wait.budget_need?.suggested_cost_usd || "", size: 10 });
      form.append(h("div.pair", field("Tokens more", tokens), field("US dollars more", usd)));
      const grant = () => grantOf(wait.budget_need, Number(tokens.value), Number(usd.value));
      buttons.append(choice("Grant", grant, "Granted: the task goes on.", "primary"), choice("Refuse", decide("deny"), "Refused: the task ends at its cap.", "danger"));
      break;
    }
    default:
      for (const option of wait.options) {
        const label = { approve: "Approve", deny: "Reject", continue: "Let it go on" }[option] ?? visible(option);
        buttons.append(choice(label, decide(option), `Answered: ${option}.`, option === "deny" ? "danger" : option === wait.options[0] ? "primary" : ""));
      }
      if (wait.kind === "QUESTION" || (wait.kind === "APPROVAL" && wait.options.length === 0)) {
        const reply = h("textarea", { name: "reply", rows: 3, maxlength: 65536 });
        form.append(field("Your answer", reply));
        const element = button("Send the answer", { needs: "APPROVE", tone: wait.options.length === 0 ? "primary" : "", onclick: () => {
          if (reply.value.trim()) send(element, { reply: reply.value }, "Answered.");
          else reply.focus();
        } });
        buttons.append(element);
      }
  }
  form.append(field("Comment", comment, "The agent reads it, and it is recorded."), error, buttons);
  return form;
}

// Asks for other arguments, as JSON.
function editArguments(wait, send) {
  const text = h("textarea.code", { name: "arguments", rows: 12, spellcheck: "false", value: visible(stringify(wait.arguments, 2)) });
  return dialog(`Other arguments for ${wait.tool}`, {
    confirm: "Allow with these",
    build: (body) => body.append(h("p", "The call runs once, with these arguments instead of the agent's. The agent reads that they were changed."), field("Arguments, a JSON object", text)),
    submit: async () => {
      let edited;
      try {
        edited = parse(text.value);
      } catch (error) {
        throw new Error(`That is not valid JSON: ${error.message}`);
      }
      if (edited === null || typeof edited !== "object" || Array.isArray(edited)) throw new Error("The arguments must be a JSON object.");
      await send(edited);
    },
  });
}

