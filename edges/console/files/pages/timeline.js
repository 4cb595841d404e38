// The timeline of a task: makes elements of its events, in order. It keeps what it needs of the task's state, as
// tenure/cli/watch_state.py does for the terminal.

import { append, fill, h, harmless, setText, visible } from "../dom.js";
import { allTokens, argumentsLine, clock, count, duration, epoch, exact, money, number, oneLine, pretty, stepWords, tokens, words } from "../format.js";
import { stringify } from "../json.js";
import { markdown } from "../markdown.js";
import { isEnded, known, leaseEnd, waitLine } from "../states.js";
import { longText, may } from "../ui.js";
import { argumentsView, outputView } from "./contents.js";
import { effectsAddress } from "./effects.js";

const OUTCOMES = { SUCCEEDED: ["✓", "ok"], IN_DOUBT: ["?", "warn"], NOT_RUN: ["·", "dim"] };
const FAILED = ["✗", "bad"];
const EFFECTS = {
  PURE: "It only reads: it may run again.",
  IDEMPOTENT: "Running it twice is as good as once.",
  KEYED: "It has an idempotency key: a repeat has no second effect.",
  UNSAFE: "It must not run twice: if its outcome is unknown, a person decides.",
};
const EARLY_LIMIT = 5000;
const LIVE_LIMIT = 64 * 1024; // Characters of live text that are kept, counted from its end.

export class Timeline {
  // on.marker(text): what a person should hear of. on.budget(budget), on.owner(worker, epoch), on.tools(names): the tools
  // that the model is offered. on.prompt(step): shows what the model read; null: the ledger does not have it.
  // on.plan(id): the element with what a plan has left.
  constructor(on = {}) {
    this.element = h("ol.timeline", { "aria-label": "Timeline" });
    this.on = on;
    this.owner = "";
    this.epoch = 0;
    this.state = "";
    this.takeovers = 0;
    this.wasLost = false;
    this.sequence = 0;
    this.step = null; // The block of the newest step, until a transition closes it.
    this.calls = new Map();
    this.tools = new Map();
    this.newestStep = 0;
    this.early = [];
  }

  apply(event) {
    if (event.kind === "live_text") return this.#liveText(event);
    if (event.sequence <= this.sequence) return undefined; // Seen before.
    this.sequence = event.sequence;
    this.newestStep = Math.max(this.newestStep, event.step ?? 0);
    const handler = HANDLERS[event.kind];
    if (handler) return handler.call(this, event);
    return this.mark(event, "·", "dim", words(event.kind));
  }

  // Appends a marker: one line with a sign, and perhaps more below it.
  mark(event, sign, tone, text, ...below) {
    const item = h(`li.mark.${tone}`, timeOf(event), h("span.sign", { "aria-hidden": "true" }, sign), h("div.said", h("p", text), below));
    this.element.append(item);
    return item;
  }

  // The block of a step; a new one if a transition came in between.
  block(event) {
    if (this.step?.number === event.step) return this.step;
    this.#closeStep();
    this.step = new StepBlock(event, this.element);
    return this.step;
  }

  #closeStep() {
    this.step?.close();
    this.step = null;
  }

  // A call of a model runner goes on in its step when its worker is gone.
  #closeLeftStep() {
    if (!this.step?.outlivesWorker) this.#closeStep();
  }

  // The text of a call may come before the entry that began the call, when the page is opened in the middle of it.
  #liveText(event) {
    if (this.step?.number === event.step && this.step.isAsked) this.step.live(event);
    else if (event.step >= this.newestStep && this.early.length < EARLY_LIMIT) this.early.push(event);
  }

  asked(block) {
    if (this.on.prompt && !block.isAsked) block.head.append(h("button.link", { type: "button", onclick: () => this.on.prompt(block.number) }, "prompt"));
    block.isAsked = true;
    for (const event of this.early.splice(0)) if (event.step === block.number) block.live(event);
  }

  transition(event) {
    if (event.budget) this.on.budget?.(event.budget);
    const before = this.state;
    this.state = event.state;
    const reason = event.reason ? words(event.reason) : "";
    if (event.state === "RUNNING") {
      this.#closeLeftStep();
      this.#opened(event);
    } else if (isEnded(event.state)) {
      this.#closeStep();
      this.#ended(event, reason);
    } else if (event.state === "QUEUED" && !event.from_state) {
      this.mark(event, "○", "dim", "Queued");
    } else if (before === "RUNNING" && event.state === "QUEUED") {
      this.wasLost = true;
      this.#closeLeftStep();
      this.#said(event, "!", "warn", `${this.owner || "The worker"} no longer holds the task: ${reason || "released"}`, detail(event.message), detail(leaseEnd(event.lease_end)));
      this.on.owner?.("", 0);
    } else if (event.wait) {
      this.#closeStep();
      this.#said(event, "◐", "warn", `${known(event.state).word === "waits" ? "Waits" : "Waits for a person"}: ${waitLine(event.wait)}`, waitDetail(event.wait));
      this.on.owner?.("", 0);
    } else if (event.reason === "TOOL_IN_DOUBT") {
      this.#closeStep();
      for (const id of event.calls_in_doubt) this.calls.get(id)?.doubt();
      this.#said(event, "?", "warn", `Waits for a person: ${count(event.calls_in_doubt.length, "call")} may or may not have happened`, detail(event.message));
      this.on.owner?.("", 0);
    } else {
      this.#closeStep();
      const again = event.next_retry_at ? ` until ${clock(event.next_retry_at)}` : "";
      this.#said(event, known(event.state).sign, known(event.state).tone, `${capital(known(event.state).word)}${again}${reason ? `: ${reason}` : ""}`, detail(event.message));
      if (event.state !== "RUNNING") this.on.owner?.("", 0);
    }
  }

  #said(event, sign, tone, text, ...below) {
    this.on.marker?.(text);
    return this.mark(event, sign, tone, text, ...below);
  }

  #opened(event) {
    const isFirst = !this.owner;
    const isTakeover = this.wasLost;
    if (isTakeover) this.takeovers += 1;
    const step = this.newestStep || 1;
    const how = isFirst ? "takes the task" : event.actor === this.owner ? `takes the task again at step ${step}` : isTakeover ? `takes over from ${this.owner} at step ${step}` : `goes on at step ${step}`;
    const epochs = event.epoch ? [h("span.epoch", { title: "The epoch: writes and tool calls with a lower one are refused." }, this.epoch ? `epoch ${epoch(this.epoch)} → ${epoch(event.epoch)}` : `epoch ${epoch(event.epoch)}`)] : [];
    const item = this.#said(event, isTakeover ? "⇄" : "●", "run", `${event.actor} ${how}`);
    append(item.querySelector("p"), [" ", epochs]);
    if (isTakeover) item.classList.add("takeover");
    this.owner = event.actor;
    this.epoch = event.epoch ?? 0;
    this.wasLost = false;
    this.on.owner?.(this.owner, this.epoch);
  }

  #ended(event, reason) {
    const tone = known(event.state).tone;
    const item = this.#said(event, known(event.state).sign, tone, `${capital(known(event.state).word)}${event.state !== "SUCCEEDED" && reason ? `: ${reason}` : ""}`, event.state === "SUCCEEDED" ? null : detail(event.message));
    item.classList.add("end");
    this.on.owner?.("", 0);
  }
}

const HANDLERS = {
  submitted(event) {
    const from = event.parent_task_id ? " by its parent" : "";
    this.mark(event, "▸", "dim", `Submitted${from}`, event.goal ? longText(event.goal, 4000) : null).classList.add("goal");
  },
  transition(event) {
    this.transition(event);
  },
  tools_defined(event) {
    for (const tool of event.tools) this.tools.set(tool.name, tool);
    this.on.tools?.(event.tools.map((tool) => tool.name));
    for (const call of this.calls.values()) call.define(this.tools.get(call.tool));
    if (event.unknown_names.length > 0) this.mark(event, "!", "warn", `No tool has the name ${event.unknown_names.join(", ")}`);
  },
  model_attempt(event) {
    if (event.budget) this.on.budget?.(event.budget);
    const block = this.block(event);
    block.discardText();
    block.thinking(event);
    block.outlivesWorker = event.outlives_worker;
    if (event.attempt_number > 1) block.note(event, "dim", `The model call is repeated: attempt ${event.attempt_number}`);
    this.asked(block);
  },
  model_failure(event) {
    const block = this.block(event);
    block.discardText();
    block.outlivesWorker = false;
    const status = event.status_code ? ` ${event.status_code}` : "";
    const again = event.retry_after_seconds ? `, retry after ${duration(event.retry_after_seconds)}` : event.retryable ? ", retried" : "";
    block.note(event, "bad", `The model call failed: ${words(event.error_class)}${status}${again}`, event.message);
  },
  attempt_lost(event) {
    this.step?.discardText();
    if (this.step) this.step.outlivesWorker = false;
    this.mark(event, "·", "warn", `The model call in flight was lost, billed as ${tokens(event.usage)}`);
  },
  assistant_message(event) {
    const block = this.block(event);
    block.outlivesWorker = false;
    block.answer(event);
  },
  tool_intent(event) {
    const call = new Call(event, this.tools.get(event.tool));
    this.calls.set(event.call_id, call);
    call.step = this.block(event);
    call.step.call(call);
  },
  tool_outcome(event) {
    const call = this.calls.get(event.call_id);
    call?.outcome(event);
    call?.step.callEnded();
  },
  user_message(event) {
    this.mark(event, "»", "person", `${event.actor || "A person"} ${event.interrupt ? "interrupts" : "says"}`, longText(event.text));
  },
  cancel_request(event) {
    this.on.marker?.(`${event.actor} cancels the task`);
    this.mark(event, "!", "warn", `${event.actor || "A person"} cancels the task${event.reason ? `: ${event.reason}` : ""}`);
  },
  wait_resolution(event) {
    if (event.answer_kind === "NO_ANSWER" || event.answer_kind === "SUB_AGENTS") {
      const isSubAgents = event.wait_kind === "SUB_AGENTS";
      const late = isSubAgents ? "Not all sub-agents ended in time" : "The wait was not answered in time";
      this.mark(event, "»", event.answer_kind === "NO_ANSWER" ? "warn" : "dim", event.answer_kind === "NO_ANSWER" ? late : "All sub-agents have ended");
      this.on.tree?.();
      return;
    }
    const said = event.edited_arguments ? "allows the call with other arguments" : answerWords(event);
    const more = [
      event.extra_tokens ? `${number(event.extra_tokens)} more tokens` : "",
      event.extra_cost_usd ? `${money(event.extra_cost_usd)} more` : "",
      event.plan ? planWords(event.plan) : "",
    ].filter(Boolean).join(" and ");
    const edited = event.edited_arguments ? longText(pretty(event.edited_arguments)) : null;
    const link = event.addressee ? ` by the link sent to ${event.addressee}` : "";
    const text = `${event.actor || "Unknown"} ${said}${more ? `, ${more}` : ""}${link}`;
    this.on.marker?.(text);
    this.mark(event, "»", "person", text, event.comment ? h("p.comment", event.comment) : null, edited, event.plan ? this.on.plan?.(event.plan.plan_id) : null);
  },
  control_step(event) {
    if (this.step?.number === event.step && this.step.hasAnswer) return; // The answer of its model call is shown.
    const [sign, tone] = event.error ? FAILED : OUTCOMES.SUCCEEDED;
    const value = event.error || (event.result === null ? "" : stringify(event.result));
    this.mark(event, sign, event.error ? "bad" : tone, `Step ${event.step}: ${event.name}`, value ? h("pre.short", oneLine(value, 400)) : null);
  },
  control_failure(event) {
    this.mark(event, "✗", "bad", `The function failed: ${event.error_class}${event.retryable ? ", retried" : ""}`, detail(event.message));
  },
  result_rejected(event) {
    this.mark(event, "!", "warn", "The answer does not fit the result schema", h("ul", event.violations.map((violation) => h("li", violation))));
  },
  budget_warning(event) {
    if (event.budget) this.on.budget?.(event.budget);
    if (event.limit === "MODEL_UNPRICED") {
      this.mark(event, "!", "warn", "The ledger has no price for the model of a call: the cap in money does not hold for it");
      return;
    }
    const what = event.limit === "MONEY_LIMIT" ? `${money(event.budget?.used_cost_usd)} of ${money(event.budget?.max_cost_usd)}` : `${number(event.budget?.used_tokens)} of ${number(event.budget?.max_tokens)} tokens`;
    this.on.marker?.(`Budget warning: ${what} used`);
    this.mark(event, "!", "warn", `Budget warning: ${what} used`);
  },
  sub_agents_spawned(event) {
    const links = event.task_ids.map((id) => [" ", h("a", { href: `#/tasks/${encodeURIComponent(id)}` }, id.slice(0, 13))]);
    this.mark(event, "↳", "run", [`Begins ${count(event.task_ids.length, "sub-agent")}, ${number(event.max_tokens)} tokens at most:`, links]);
    this.on.tree?.();
  },
  forked(event) {
    const from = event.data?.forked_from ?? {};
    const link = from.task_id ? h("a", { href: `#/tasks/${encodeURIComponent(from.task_id)}` }, from.task_id.slice(0, 13)) : "another task";
    this.mark(event, "↳", "dim", ["Forked from ", link, from.sequence ? ` after entry ${number(Number(from.sequence))}` : ""]);
  },
  operator_request(event) {
    const { reason = "", ...rest } = event.data ?? {};
    const what = rest.resolve_call ? resolutionWords(rest.resolve_call) : `requests: ${Object.keys(rest).map(words).join(", ") || "nothing that is known here"}`;
    const text = `${event.actor || "An operator"} ${what}`;
    this.on.marker?.(text);
    this.mark(event, "»", "person", text, reason ? h("p.comment", reason) : null);
  },
  wait_escalated(event) {
    const { after = "", ...step } = event.data?.step ?? {};
    this.mark(event, "↑", "warn", `No answer${after ? ` after ${after.replace(/(\d+)s$/, (_, seconds) => duration(Number(seconds)))}` : ""}: ${stepWords(step)}`);
  },
  compaction(event) {
    const cleared = event.data?.cleared_results;
    this.mark(event, "≡", "dim", cleared ? `${count(Number(cleared.results ?? 0), "older result")} left the model's context` : "The conversation was summarised for the model");
  },
  quota_warning(event) {
    this.mark(event, "!", "warn", `The tenant nears its quota of ${words(event.data?.kind ?? "").replace("quota kind ", "")}: ${number(Number(event.data?.used ?? 0))} of ${number(Number(event.data?.most ?? 0))}`);
  },
};

// One step: the model's text and its calls.
class StepBlock {
  constructor(event, parent) {
    this.number = event.step;
    this.hasAnswer = false;
    this.isAsked = false;
    this.outlivesWorker = false;
    this.calls = [];
    this.meta = h("span.dim.meta");
    this.text = h("div.text");
    this.notes = h("div.notes");
    this.list = h("div.calls");
    this.head = h("h3", h("span", `Step ${event.step}`), this.meta);
    this.element = h("li.step", timeOf(event), h("span.sign", { "aria-hidden": "true" }, "•"), h("div.said", this.head, this.notes, this.text, this.list));
    this.position = { block: 0, end: 0 };
    this.isDiscarded = false;
    parent.append(this.element);
  }

  thinking(event) {
    setText(this.meta, `${event.model || "the model"} answers …`);
    this.element.classList.add("busy");
  }

  live(event) {
    if (this.hasAnswer) return;
    if (event.replaces || this.isDiscarded) {
      fill(this.text);
      this.position = { block: 0, end: 0 };
    }
    this.isDiscarded = false;
    this.text.classList.remove("discarded");
    // After a broken connection the text comes again from its beginning; offsets count code points.
    if (event.block < this.position.block) return;
    const isNext = event.block > this.position.block;
    const known = isNext ? 0 : Math.max(0, this.position.end - event.offset);
    const text = Array.from(event.text).slice(known).join("");
    if (!text) return;
    this.position.end = event.offset + Array.from(event.text).length;
    let node = this.text.firstChild;
    if (!(node instanceof Text)) node = fill(this.text).appendChild(document.createTextNode(""));
    const paragraph = isNext && node.data ? "\n\n" : "";
    const gap = event.skipped ? "…" : "";
    this.position.block = event.block;
    node.appendData(paragraph + gap + harmless(text));
    if (node.length > LIVE_LIMIT) node.deleteData(0, node.length - LIVE_LIMIT);
    this.text.classList.add("streaming");
    this.element.classList.add("busy");
  }

  answer(event) {
    this.hasAnswer = true;
    this.element.classList.remove("busy");
    this.text.classList.remove("streaming", "discarded");
    fill(this.text, event.text.trim() ? markdown(event.text.trim()) : null);
    const stopped = { tool_use: "", end_turn: "", stop_sequence: "" }[event.stop_reason] ?? ` · ${words(event.stop_reason)}`;
    setText(this.meta, `${duration(event.latency_seconds)} · ${tokens(event.usage)}${stopped}${event.model ? ` · ${event.model}` : ""}`);
    this.meta.title = `${number(allTokens(event.usage))} tokens${event.usage_estimated ? ", estimated" : ""}`;
  }

  note(event, tone, text, message = "") {
    append(this.notes, [h(`p.note.${tone}`, { title: exact(event.recorded_at) }, text, message ? h("span.dim", ` ${oneLine(message, 300)}`) : null)]);
    if (tone === "bad") {
      setText(this.meta, "");
      this.element.classList.remove("busy");
    }
  }

  // The text of a call that was lost or failed is not an answer.
  discardText() {
    if (this.hasAnswer || !this.text.textContent) return;
    this.text.classList.remove("streaming");
    this.isDiscarded = true;
    this.text.classList.add("discarded");
    this.text.title = "This unfinished text is discarded";
  }

  call(call) {
    this.calls.push(call);
    this.list.append(call.element);
  }

  // A step of a function has no answer: it is finished with its calls, which may end after a takeover.
  get isFinished() {
    return !this.isAsked && this.calls.length > 0 && this.calls.every((call) => call.isDone);
  }

  callEnded() {
    if (!this.hasAnswer && this.isFinished) setText(this.meta, "");
  }

  close() {
    this.element.classList.remove("busy");
    if (!this.hasAnswer) {
      this.discardText();
      if (!this.text.textContent && !this.list.hasChildNodes() && !this.notes.hasChildNodes()) this.element.remove();
      else if (!this.isFinished) setText(this.meta, "not finished");
    }
  }
}

// One tool call: a line, and its arguments and output below it.
class Call {
  constructor(event, definition) {
    this.tool = event.tool;
    this.arguments = event.arguments;
    this.since = event.recorded_at;
    this.sign = h("span.sign", { "aria-hidden": "true" }, "◌");
    this.tail = h("span.tail", { "data-since": true });
    this.tag = h("span.effect");
    this.touched = h("p", { hidden: true });
    this.output = h("div.output");
    this.first = h("p.first-line.dim");
    const line = h("summary", this.sign, h("b", event.tool), " ", h("code.args", oneLine(argumentsLine(event.arguments), 400)), this.tag, this.tail);
    const body = h("div.call-body", h("h4", `Call ${event.call_id}: arguments`), argumentsView(event.arguments), this.touched, this.output);
    this.details = h("details", line, body);
    this.element = h("div.call.open", this.details, this.first);
    this.tail.addEventListener("tick", () => {
      if (!this.isDone) setText(this.tail, duration(Math.max(0, (Date.now() - Date.parse(this.since)) / 1000)));
    });
    this.define(definition);
  }

  define(definition) {
    const name = definition?.effect_class;
    setText(this.tag, name ? name.toLowerCase() : "");
    this.tag.title = EFFECTS[name] ?? "";
    if (name === "UNSAFE") this.tag.classList.add("unsafe");
    const address = may("TENANT_ADMIN") ? effectsAddress(definition, this.arguments) : "";
    this.touched.hidden = !address;
    if (address) fill(this.touched, h("a", { href: address }, "All calls with this effect key"));
  }

  doubt() {
    this.#mark(["?", "warn"]);
    setText(this.tail, "may or may not have happened");
    this.isDone = true;
  }

  outcome(event) {
    this.isDone = true;
    this.tail.removeAttribute("data-since");
    const outcome = OUTCOMES[event.status] ?? FAILED;
    this.#mark(outcome);
    const status = event.status === "SUCCEEDED" ? "" : `${words(event.status)}${event.detail ? ` (${words(event.detail)})` : ""} · `;
    const attempt = event.call_attempt > 1 ? ` · call attempt ${event.call_attempt}` : "";
    setText(this.tail, `${status}${duration(event.duration_seconds)}${attempt}`);
    const lines = event.content.split("\n").filter((line) => line.trim());
    setText(this.first, lines.length === 0 ? "" : `${oneLine(lines[0], 240)}${lines.length > 1 ? ` (+${count(lines.length - 1, "line")})` : ""}`);
    const where = event.output_path ? h("p.dim", `The whole output is in the file ${event.output_path}.`) : event.truncated ? h("p.dim", "The output was cut.") : null;
    const note = event.note ? h("p.warn", visible(event.note)) : null;
    fill(this.output, h("h4", "Output"), outputView(event.content), note, where);
  }

  #mark([sign, tone]) {
    setText(this.sign, sign);
    this.element.className = `call ${tone}`;
  }
}

function timeOf(event) {
  if (!event.recorded_at) return h("time.at", "");
  return h("time.at", { datetime: event.recorded_at, title: `${exact(event.recorded_at)} · entry ${event.sequence}` }, clock(event.recorded_at));
}

const detail = (message) => (message ? h("p.detail", message) : null);

function waitDetail(wait) {
  const lines = [];
  for (const call of wait.calls.length > 0 ? wait.calls : wait.tool ? [wait] : []) lines.push(longText(pretty(call.arguments)));
  if (wait.question && wait.kind !== "QUESTION" && wait.kind !== "APPROVAL" && wait.kind !== "OPERATOR") lines.push(detail(wait.question));
  return lines;
}

function answerWords(event) {
  const said = event.answer ?? "";
  if (event.answer_kind === "DECISION") return { allow: "allows the call", deny: "denies it", approve: "approves", continue: "lets it go on" }[said] ?? `answers: ${said}`;
  if (event.answer_kind === "REPLY") return `answers: ${oneLine(said, 400)}`;
  if (event.answer_kind === "PAYLOAD" || event.wait_kind === "EVENT") return "sends the event";
  return `${words(event.answer_kind)}${said ? `: ${oneLine(said, 400)}` : ""}`;
}

function planWords(plan) {
  const bounds = plan.same.map((path, index) => `${path} ${plan.same_values[index]}`);
  if (plan.when) bounds.push(plan.when);
  if (plan.limit) bounds.push(`${plan.sum_of} at most ${plan.limit} in all`);
  return [`later calls of ${plan.tool}: up to ${number(plan.count)}`, ...bounds, `until ${exact(plan.ends_at)}`].join(", ");
}

function resolutionWords(resolution) {
  const call = `call ${resolution.call_id}`;
  const decision = resolution.decision ?? {};
  if ("happened" in decision) return `says that ${call} happened`;
  if ("did_not_happen" in decision) return `says that ${call} did not happen: it runs again`;
  if ("abandon" in decision) return `abandons ${call}, which stays in doubt`;
  return `resolves ${call}`;
}

const capital = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");
