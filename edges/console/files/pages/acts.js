// Acts on many tasks: what matches, by state and reason; a reason; then page after page, until every task has an outcome.

import { api, listIn, requestId } from "../api.js";
import { append, fill, h, setText } from "../dom.js";
import { count, number, shortId } from "../format.js";
import { stateMark } from "../states.js";
import { button, dialog, errorText, field, notice } from "../ui.js";

const ACTS = [
  { act: "CANCEL", label: "Cancel …", verb: "Cancel %", did: "cancelled", needs: "WRITE", tone: "danger", note: "Each task ends as CANCELLED, with its sub-agents. Effects that happened stay." },
  { act: "REQUEUE", label: "Requeue …", verb: "Requeue %", did: "requeued", needs: "TENANT_ADMIN", tone: "primary", note: "Each task that ended begins its next attempt, and continues from its history." },
  { act: "BEGIN_WAIT", label: "Wait …", verb: "Let % wait", did: "put into a wait", needs: "TENANT_ADMIN", tone: "primary", note: "Each task waits for a person: a running one when its worker has lost it." },
  { act: "END_WAIT", label: "Continue …", verb: "Continue %", did: "continued", needs: "APPROVE", tone: "primary", note: "The waits end that an operator began. Each task is queued again." },
];

// The buttons. filterOf() returns the filter of the list, as the route takes it.
export function actButtons(filterOf) {
  return ACTS.map((kind) => button(kind.label, { needs: kind.needs, title: kind.verb.replace("%", "the tasks that match"), onclick: () => preview(kind, filterOf()) }));
}

async function preview(kind, filter) {
  if (Object.keys(filter).length === 0) {
    notice("Choose a state, an agent, a queue, a label or a reason first.", "warn");
    return;
  }
  try {
    const counted = await api.post("/v1/tasks/act", { act: kind.act, filter, dry_run: true, ...wait("–", 1) }); // also a count needs them
    const groups = listIn(counted, "groups");
    if (groups.length === 0 && !counted.more) notice(`No task that matches can be ${kind.did}.`);
    else await confirm(kind, filter, groups, counted.more);
  } catch (error) {
    notice(errorText(error), "bad");
  }
}

async function confirm(kind, filter, groups, isPart) {
  const total = groups.reduce((sum, group) => sum + group.count, 0);
  const tasks = total === 0 ? "the tasks that match" : `${count(total, "task")}${isPart ? " or more" : ""}`;
  const wanted = kind.verb.replace("%", tasks);
  const reason = h("input", { name: "reason", maxlength: 1000, autocomplete: "off", required: kind.act !== "CANCEL" });
  const question = h("input", { name: "question", maxlength: 4000, autocomplete: "off", required: true });
  const hours = h("input", { name: "hours", type: "number", min: 1, max: 719, value: 24, required: true });
  const progress = h("p", { role: "status" });
  const operation = new Operation({ act: kind.act, filter, operation_id: requestId() });
  let element;
  const ended = await dialog(`${wanted}?`, {
    confirm: wanted,
    cancel: "Close",
    tone: kind.tone,
    build: (body, opened) => {
      element = opened;
      body.append(h("ul.groups", groups.map(groupLine)), h("p", kind.note));
      if (kind.act === "BEGIN_WAIT") body.append(field("Question", question, "What the tasks wait for."), field("Hours", hours, "The deadline, at most 30 days from now."));
      body.append(field("Reason", reason, "It is recorded."), progress);
    },
    submit: async () => {
      // All pages of an operation have the same words, also after an error.
      if (kind.act === "BEGIN_WAIT" && !question.readOnly) Object.assign(operation.request, wait(question.value.trim(), hours.value));
      for (const input of [reason, question, hours]) input.readOnly = true;
      await operation.run(reason.value.trim(), () => element.open, () => setText(progress, operation.words(kind.did)));
      return operation;
    },
  });
  if (ended && operation.refused.length > 0) await showRefused(kind, operation);
  else if (operation.done + operation.already > 0) notice(operation.words(kind.did));
}

function wait(question, hours) {
  return { question, until: new Date(Date.now() + hours * 3600_000).toISOString() };
}

function groupLine(group) {
  return h("li", `${number(group.count)} `, stateMark(group.state), h("span.dim", ` ${group.reason} · ${group.task_ids.map(shortId).join(" ")}`));
}

// One operation. After an error it continues where it was: its id acts on no task twice.
class Operation {
  constructor(request) {
    this.request = request;
    this.done = 0;
    this.already = 0;
    this.refused = [];
  }

  // Acts until there are no more tasks, or the dialog is closed.
  async run(reason, isWanted, show) {
    do {
      const page = await api.post("/v1/tasks/act", { ...this.request, reason });
      for (const outcome of listIn(page, "outcomes")) {
        if (outcome.result === "DONE") this.done += 1;
        else if (outcome.result === "ALREADY") this.already += 1;
        else this.refused.push(outcome);
      }
      this.request.page_token = page.next_page_token;
      show();
    } while (this.request.page_token && isWanted());
  }

  words(did) {
    const rest = [[this.already, "already"], [this.refused.length, "refused"]].filter(([some]) => some > 0);
    return [`${count(this.done, "task")} ${did}`, ...rest.map(([some, word]) => `${number(some)} ${word}`)].join(", ");
  }
}

function showRefused(kind, operation) {
  const lines = operation.refused.slice(0, 100).map((one) => h("li", h("a", { href: `#/tasks/${encodeURIComponent(one.task_id)}` }, shortId(one.task_id)), ` ${one.message || one.reason}`));
  return dialog(operation.words(kind.did), { cancel: "Close", build: (body) => append(body, [fill(h("ul.groups"), lines)]) });
}
