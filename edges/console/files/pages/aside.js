// Beside the timeline of a task: what was submitted, the tree, the files, the outputs.

import { allOf, api, currentTenant, path, tenantHeaders, url } from "../api.js";
import { fill, h, keyed, setText } from "../dom.js";
import { bytes, count, money, number, oneLine, pretty, shortId, words } from "../format.js";
import { isEnded, stateMark } from "../states.js";
import { dialog, errorText, longText, throttled, timeMark } from "../ui.js";
import { title } from "./tasks.js";

export class Aside {
  constructor(task) {
    this.task = task;
    this.toolsOfCode = [];
    this.about = h("section");
    this.tree = h("section", { hidden: true });
    this.files = h("section", { hidden: true });
    this.outputs = h("section", { hidden: true });
    this.element = h("div", this.about, this.outputs, this.tree, this.files);
    this.readTree = throttled(2000, () => this.#readTree());
    this.readFiles = throttled(5000, () => this.#readFiles());
  }

  show(task) {
    const moved = task.sequence !== this.task.sequence;
    this.task = task;
    const labels = Object.entries(task.labels ?? {}).map(([name, value]) => h("span.label", `${name}=${value}`));
    const isCode = task.function !== null; // Its code chooses the model, and the ledger lists the tools.
    const pairs = [
      ["Agent", task.agent ? `${task.agent}${task.agent_revision ? `@${task.agent_revision}` : ""}` : (task.function?.name ?? "")],
      ["Model", isCode ? "" : task.model || "the worker's default"],
      ["Queue", `${task.queue || "default"}, priority ${words(task.priority)}`],
      ["Tenant", task.tenant],
      ["Labels", labels.length > 0 ? labels : ""],
      ["Source", task.source && task.source.kind !== "MANUAL" ? [words(task.source.kind), task.source.source_id].filter(Boolean).join(" ") : ""],
      ["Tools", isCode ? this.toolsOfCode.join(", ") : task.tools === null ? "all of the tenant's" : task.tools.join(", ") || "none"],
      ["Need approval", task.approve_tools.join(", ")],
      ["Parent", task.parent_task_id ? h("a", { href: `#/tasks/${encodeURIComponent(task.parent_task_id)}` }, shortId(task.parent_task_id)) : ""],
      ["Forked from", task.forked_from_task_id ? h("a", { href: `#/tasks/${encodeURIComponent(task.forked_from_task_id)}` }, shortId(task.forked_from_task_id)) : ""],
      ["Undo of", task.undo_of ? h("a", { href: `#/tasks/${encodeURIComponent(task.undo_of)}` }, shortId(task.undo_of)) : ""],
      ["Submitted", timeMark(task.created_at)],
      ["Deadline", task.deadline_at && !isEnded(task.state) ? timeMark(task.deadline_at) : ""],
      ["Next retry", task.next_retry_at ? timeMark(task.next_retry_at) : ""],
      ["Receipts", isEnded(task.state) ? h("a", { href: url(path`/v1/tasks/${task.task_id}/receipts`, { tenant: currentTenant() }), download: "receipts.jsonl", title: "The signed receipts of the task's effects" }, "Download") : ""],
    ].filter(([, value]) => value !== "" && value !== null);
    const more = [];
    if (task.system) more.push(h("details", h("summary", "System prompt"), longText(task.system)));
    if (task.function && task.function.input !== null) more.push(h("details", h("summary", "Input"), longText(pretty(task.function.input))));
    fill(this.about, h("h2", "About"), h("dl.facts", pairs.map(([name, value]) => h("div", h("dt", name), h("dd", value)))), more);
    this.outputs.hidden = task.outputs.length === 0;
    if (task.outputs.length > 0) {
      fill(this.outputs, h("h2", "Outputs"), h("ul.plain-list", task.outputs.map((output) => h("li", h("b", output.kind), ` ${output.uri}`, h("span.dim", ` ${[output.size_bytes === null ? "" : bytes(output.size_bytes), words(output.state), output.description].filter(Boolean).join(" · ")}`)))));
    }
    if (moved) {
      this.readFiles();
      if (!this.tree.hidden) this.readTree();
    }
  }

  // Shows the tools of a function or an agent in Python.
  showTools(names) {
    this.toolsOfCode = names;
    if (this.task.function !== null) this.show(this.task);
  }

  async #readTree() {
    try {
      const tasks = await allOf(path`/v1/tasks/${this.task.task_id}/tree`, "tasks", { page_size: 500 });
      this.tree.hidden = tasks.length < 2;
      if (tasks.length < 2) return;
      const children = new Map();
      for (const one of tasks) children.set(one.parent_task_id, [...(children.get(one.parent_task_id) ?? []), one]);
      const branch = (one) => h("li", this.#leaf(one), children.has(one.task_id) ? h("ul", children.get(one.task_id).map(branch)) : null);
      const ids = new Set(tasks.map((one) => one.task_id));
      const roots = tasks.filter((one) => !ids.has(one.parent_task_id));
      const total = tasks.reduce((sum, one) => sum + (one.cost_usd ?? 0), 0);
      fill(this.tree, h("h2", "Sub-agents"), h("p.dim", `${count(tasks.length, "task")}, ${money(total)} together`), h("ul.tree", roots.map(branch)));
    } catch {
      this.tree.hidden = true; // The timeline has the same.
    }
  }

  #leaf(one) {
    const isThis = one.task_id === this.task.task_id;
    return h("a", { href: `#/tasks/${encodeURIComponent(one.task_id)}`, "aria-current": isThis ? "true" : null }, stateMark(one.state), ` ${oneLine(title(one), 60)}`, h("span.dim", ` ${money(one.cost_usd)}`));
  }

  async #readFiles() {
    try {
      const files = await allOf(path`/v1/tasks/${this.task.task_id}/files`, "files", { page_size: 1000 });
      this.files.hidden = files.length === 0;
      if (files.length === 0) return;
      if (!this.fileList) {
        this.fileList = h("ul.files");
        this.someFiles = h("p.dim");
        fill(this.files, h("h2", "Files"), this.someFiles, this.fileList);
      }
      setText(this.someFiles, files.length > SHOWN_FILES ? `The first ${SHOWN_FILES} of ${number(files.length)} are shown.` : "");
      keyed(this.fileList, files.slice(0, SHOWN_FILES), (file) => `${file.path} ${file.modified_at} ${file.size_bytes}`, (file) => this.#file(file));
    } catch {
      this.files.hidden = true;
    }
  }

  #file(file) {
    const name = file.kind === "FILE" ? h("button.link", { type: "button", onclick: () => showFile(this.task.task_id, file) }, file.path) : h("span", `${file.path}${file.kind === "DIRECTORY" ? "/" : ""}`);
    if (file.kind !== "FILE") return h("li", name);
    return h("li", name, h("span.dim", ` ${bytes(file.size_bytes)} `), h("a", { href: url(fileRoute(this.task.task_id, file), { tenant: currentTenant() }), download: file.path.split("/").at(-1), title: `Download ${file.path}`, "aria-label": `Download ${file.path}` }, "↓"));
  }
}

const fileRoute = (taskId, file) => `${path`/v1/tasks/${taskId}/files/`}${file.path.split("/").map(encodeURIComponent).join("/")}`;
const SHOWN_BYTES = 256 * 1024;
const SHOWN_FILES = 200;

// Shows the beginning of a file as text. It is never opened as a page: it is an agent's.
function showFile(taskId, file) {
  const text = h("pre.file", "Loading …");
  return dialog(file.path, {
    cancel: "Close",
    wide: true,
    build: async (body) => {
      body.append(text);
      try {
        const response = await api.file(fileRoute(taskId, file), { headers: { Accept: "*/*", ...tenantHeaders() } });
        const reader = response.body.getReader();
        const chunks = [];
        let size = 0;
        while (size < SHOWN_BYTES) {
          const { done, value } = await reader.read();
          if (done) break;
          chunks.push(value);
          size += value.length;
        }
        reader.cancel().catch(() => {});
        const shown = new TextDecoder().decode(await new Blob(chunks).arrayBuffer());
        fill(text, size === 0 ? "(empty)" : shown.slice(0, SHOWN_BYTES), size < file.size_bytes ? `\n… the first ${bytes(SHOWN_BYTES)} of ${bytes(file.size_bytes)}` : "");
      } catch (error) {
        fill(text, errorText(error));
      }
    },
  });
}
