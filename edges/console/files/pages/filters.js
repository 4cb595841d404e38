// The filters of the list of tasks: what the address keeps, what the fields show, and what the gateway takes.

const labelOf = (text) => [text.split("=")[0], text.split("=").slice(1).join("=")];
const numberOf = (text) => (Number.isNaN(Number(text)) ? text : Number(text)); // The gateway refuses a text.

// The filters beside the states, one a row, by the name of the gateway's parameter and of the address. send: the value as
// the gateway takes it. act: as the filter of an act takes it. rare: below "More".
export const FILTERS = [
  { name: "text", label: "Search", size: 36, placeholder: "Search words of goals and results  ( / )" },
  { name: "agent", label: "Agent", size: 14, placeholder: "agent@7" },
  { name: "queue", label: "Queue", size: 12 },
  { name: "label", label: "Label", size: 16, placeholder: "label=value", send: (text) => labelOf(text).join(":"), act: (text) => Object.fromEntries([labelOf(text)]) },
  { name: "reason", label: "Reason", size: 20, placeholder: "WORKER_LOST", rare: true, send: (text) => text.toUpperCase(), act: (text) => text.toUpperCase().split(",") },
  { name: "source", label: "Source", size: 16, placeholder: "scheduler/nightly", rare: true },
  { name: "since", label: "Submitted since", type: "datetime-local", rare: true },
  { name: "before", label: "Submitted before", type: "datetime-local", rare: true },
  { name: "ended_since", label: "Ended since", type: "datetime-local", rare: true },
  { name: "ended_before", label: "Ended before", type: "datetime-local", rare: true },
  { name: "model", label: "Model", size: 16, rare: true },
  { name: "min_cost", label: "Least US dollars", type: "number", rare: true, act: numberOf },
  { name: "max_cost", label: "Most US dollars", type: "number", rare: true, act: numberOf },
  { name: "min_duration", label: "Least seconds", type: "number", rare: true, act: numberOf },
  { name: "max_duration", label: "Most seconds", type: "number", rare: true, act: numberOf },
  { name: "root_task_id", label: "Tree of task", size: 34, placeholder: "id of a task", rare: true },
  { name: "forked_from_task_id", label: "Forks of task", size: 34, placeholder: "id of a task", rare: true },
];

const ZONE = /(?:Z|[+-]\d\d:?\d\d)$/i;

// The value of one filter. `text`: as the address has it and the gateway takes it; a time names its zone, so that the address
// means the same everywhere. A text that its field cannot show stays until the field changes: the gateway says what is wrong.
export class Value {
  constructor(filter, text) {
    this.filter = filter;
    this.text = filter.type === "datetime-local" && !ZONE.test(text) ? instantOf(text) : text;
  }

  // As the field shows it: a time in the zone of the viewer.
  get shown() {
    return this.filter.type === "datetime-local" ? localOf(this.text) : this.text;
  }

  set shown(shown) {
    if (shown === this.shown && shown) return; // Of an hour that the clocks repeat, it stays the one that it was.
    this.text = this.filter.type === "datetime-local" ? instantOf(shown) : shown.trim();
  }
}

function instantOf(local) {
  const date = new Date(local);
  return Number.isNaN(date.getTime()) ? local : date.toISOString();
}

function localOf(instant) {
  const date = new Date(instant);
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().replace(/(?::00)?\.000Z$|Z$/, "");
}

// The values as the routes of lists take them.
export const queryOf = (values) => Object.fromEntries(values.map(({ filter: { name, send }, text }) => [name, send ? send(text) : text]));

// The values as the filter of an act takes them.
export const actOf = (values) => Object.fromEntries(values.map(({ filter: { name, act }, text }) => [name, act ? act(text) : text]));
