// A call in doubt: what is known, the steps to find out, and the resolution with its consequences.

import { api, path } from "../api.js";
import { h, setText } from "../dom.js";
import { oneLine, pretty, shortId } from "../format.js";
import { stringify } from "../json.js";
import { button, dialog, facts, field, notice, timeMark } from "../ui.js";

const CONSEQUENCES = {
  HAPPENED: ["It happened", "The agent reads a success, with the result that you write. If it did not happen, it never will."],
  DID_NOT_HAPPEN: ["It did not happen", "Tenure runs the call again. If it did happen, it then happens twice: only this resolution can cause that."],
  ABANDONED: ["It cannot be found out", "The agent reads that the outcome is unknown, with your reason, and goes on. Nothing happens twice."],
};

export function doubtPanel(call, { onResolved = () => {}, heading = "h2", withTask = true } = {}) {
  const id = `doubt-${call.task_id}-${call.call_id}-${call.call_attempt}`;
  const isGone = call.runner_gone;
  const runner = call.acts_elsewhere
    ? h("span.warn", "Its effect is elsewhere: the other side may still be working on it.")
    : isGone
      ? h("span.ok", "The runner is proven gone: what you find outside is final.")
      : h("span.bad", "The runner is NOT proven gone: it may only be paused, and may still go on.");
  return h(
    "section.doubt",
    { "aria-labelledby": id },
    h(heading, { id }, h("span.sign.warn", { "aria-hidden": "true" }, "? "), `${call.tool}: did it happen?`),
    h("pre.arguments", pretty(call.arguments)),
    call.arguments_truncated ? h("p.warn", "The arguments are cut here; the task's timeline has all of them.") : null,
    facts(
      withTask ? ["Task", h("a", { href: `#/tasks/${encodeURIComponent(call.task_id)}`, "data-row": true }, shortId(call.task_id))] : null,
      ["Call", `${call.call_id}, attempt ${call.call_attempt}`],
      ["Effect class", call.effect_class],
      ["Started", timeMark(call.started_at), " – the effect, if any, came after it, nearly always within a second"],
      ["In doubt since", timeMark(call.in_doubt_at)],
      ["Runner", runner, h("span.dim", ` ${call.runner_id}`)],
      ["Idempotency key", h("code", `${call.task_id}/${call.call_id}`)],
      call.note ? ["Note", call.note] : null,
    ),
    h(
      "details.runbook",
      h("summary", "How to find out"),
      h(
        "ol",
        h("li", "Read what the call was going to do: the arguments above."),
        isGone && !call.acts_elsewhere
          ? h("li", "The runner is gone: nothing more can happen.")
          : call.acts_elsewhere
            ? h("li", "Wait longer than the longest time that the call can take on the other side, or end it there. Tenure can prove nothing about it.")
            : h("li", "Make sure that the runner is gone: end its process, or reboot its machine. Do not merely wait: silence proves nothing."),
        h("li", "Then look outside: in the provider's list, the mail server's log, the table. Search for the idempotency key, or for the arguments and the time. Look after the runner is gone, not before."),
        h("li", "Resolve the call. Your reason is recorded, and the task goes on at once."),
      ),
    ),
    call.resolvable
      ? h("div.buttons", button("Resolve …", { needs: "TENANT_ADMIN", tone: "primary", onclick: () => resolve(call, onResolved) }))
      : h("p.dim", "It cannot be resolved any more: the task does not wait for it."),
  );
}

// Asks for the resolution. What follows is said before it is sent.
function resolve(call, onResolved) {
  const consequence = h("p.consequence", { role: "status" });
  const result = h("textarea.code", { name: "result", rows: 3 });
  const gone = h("input", { type: "checkbox", name: "gone" });
  const resultField = field("The result that the agent reads", result, "For example the receipt that you found. Empty: you know none.");
  const needsWord = !call.runner_gone || call.acts_elsewhere;
  const goneField = h("div.field.check", h("label", gone, call.acts_elsewhere ? " I state that nothing on the other side works on this call any more" : " I state that the runner is gone"), h("p.help", "It is recorded, and nothing checks it."));
  const reason = h("textarea", { name: "reason", rows: 2, maxlength: 1000, required: true });
  const radios = Object.entries(CONSEQUENCES).map(([value, [label]]) => h("label.choice", h("input", { type: "radio", name: "resolution", value, required: true }), ` ${label}`));
  const choose = (value) => {
    setText(consequence, value ? CONSEQUENCES[value][1] : "Choose what you found out: what follows is shown here before you send it.");
    resultField.hidden = value !== "HAPPENED";
    goneField.hidden = value !== "DID_NOT_HAPPEN" || !needsWord;
    gone.required = value === "DID_NOT_HAPPEN" && needsWord;
  };
  choose("");
  return dialog(`${call.tool}: did it happen?`, {
    confirm: "Resolve",
    build: (body) => {
      body.append(h("pre.short", oneLine(stringify(call.arguments), 300)), h("fieldset", h("legend", "What did you find?"), radios), consequence, resultField, goneField, field("How you found out", reason, "The ledger records it, with your name."));
      body.addEventListener("change", () => choose(body.querySelector("[name=resolution]:checked")?.value ?? ""));
    },
    submit: async (data) => {
      const resolution = data.get("resolution");
      const body = { call_attempt: call.call_attempt, resolution, reason: data.get("reason").trim() };
      if (resolution === "HAPPENED" && result.value) body.result = result.value;
      if (resolution === "DID_NOT_HAPPEN") body.runner_is_gone = gone.checked;
      const task = await api.post(path`/v1/tasks/${call.task_id}/calls/${call.call_id}/resolve`, body);
      notice("Resolved: it is recorded, and the task goes on.");
      onResolved(task);
      return task;
    },
  });
}
