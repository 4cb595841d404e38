// Follows a stream of server-sent events by fetch: unlike EventSource it sees the status, takes every kind of event, and
// notices a connection that is silent. It resumes after the last id, so no event is lost or seen twice.

import { errorOf, problemError, tenantHeaders, url } from "./api.js";
import { parse } from "./json.js";

const SILENCE_MS = 45_000; // The gateway says something every 15 s.
const HIDDEN_MS = 60_000; // A hidden tab closes its connection.
const LONGEST_PAUSE_MS = 10_000;

// on.event(data, id, kind); on.status("connecting" | "live" | "waiting" | "ended" | "failed", error);
// on.expired(): the position is no longer kept, the next connection begins without one.
export class Stream {
  constructor(path, query, on, after = "") {
    this.path = path;
    this.query = query;
    this.on = on;
    this.lastId = after;
    this.isOver = false;
    this.abort = null;
    this.pause = 0;
    this.onVisibility = () => this.#visibility();
    document.addEventListener("visibilitychange", this.onVisibility);
    this.#run();
  }

  stop() {
    this.isOver = true;
    this.abort?.abort();
    clearTimeout(this.hiding);
    this.wake?.();
    document.removeEventListener("visibilitychange", this.onVisibility);
  }

  #visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        this.isHidden = true;
        this.abort?.abort();
      }, HIDDEN_MS);
    } else {
      this.isHidden = false;
      this.pause = 0;
      this.wake?.();
    }
  }

  async #run() {
    while (!this.isOver) {
      if (this.isHidden) {
        this.#say("waiting");
        await this.#sleep(2 ** 30);
        continue;
      }
      this.#say("connecting");
      try {
        if (await this.#connection()) return this.#end("ended");
        this.#say("waiting"); // The gateway ended it: a drain, or a slow reader.
      } catch (error) {
        if (this.isOver) return;
        if (error.code === "CURSOR_EXPIRED" || error.status === 410) {
          this.lastId = "";
          this.on.expired?.();
        } else if (error.status >= 400 && error.status < 500 && ![408, 425, 429].includes(error.status)) {
          return this.#end("failed", error);
        }
        this.#say("waiting", error);
        this.pause = Math.max(this.pause, (error.retryAfter ?? 0) * 1000);
      }
      await this.#sleep(this.pause * (0.5 + Math.random() / 2));
      this.pause = Math.min(LONGEST_PAUSE_MS, Math.max(500, this.pause * 2));
    }
  }

  #end(status, error) {
    this.isOver = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.on.status?.(status, error);
  }

  #say(status, error) {
    if (!this.isOver) this.on.status?.(status, error);
  }

  #sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  // Reads one connection. Returns true if there is nothing more to come.
  async #connection() {
    this.abort = new AbortController();
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => this.abort.abort(), SILENCE_MS);
    };
    alive();
    try {
      const headers = { Accept: "text/event-stream", ...tenantHeaders() };
      if (this.lastId !== "") headers["Last-Event-ID"] = this.lastId;
      const address = url(this.path, this.query);
      const response = await fetch(address, { headers, signal: this.abort.signal, cache: "no-store", redirect: "error" });
      if (response.status === 204) return true;
      if (!response.ok) throw await errorOf(response);
      this.#say("live");
      let problem = null;
      const parser = new Parser((kind, data, id) => {
        if (kind === "problem") problem = problemError(data);
        else this.#event(kind, data, id);
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return false;
        alive();
        this.pause = 0;
        parser.feed(value);
        if (problem) throw problem;
        if (parser.isOver) {
          reader.cancel().catch(() => {});
          return true;
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  #event(kind, data, id) {
    if (id !== undefined) this.lastId = id;
    if (!this.isOver) this.on.event(data, id, kind);
  }
}

// The format of the HTML standard. An `event: end` says that the stream is complete.
export class Parser {
  constructor(emit) {
    this.emit = emit;
    this.rest = "";
    this.isOver = false;
    this.#clear();
  }

  #clear() {
    this.kind = "message";
    this.data = [];
    this.id = undefined;
  }

  feed(text) {
    this.rest += text;
    // A carriage return at the end may be the first half of a line end.
    const usable = this.rest.endsWith("\r") ? this.rest.length - 1 : this.rest.length;
    const lines = this.rest.slice(0, usable).split(/\r\n|\n|\r/);
    this.rest = lines.pop() + this.rest.slice(usable);
    lines.forEach((line) => this.#line(line));
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    if (line.startsWith(":")) return;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.kind = value;
    else if (field === "data") this.data.push(value);
    else if (field === "id" && !value.includes("\0")) this.id = value;
  }

  #dispatch() {
    const { kind, data, id } = this;
    this.#clear();
    if (kind === "end") this.isOver = true;
    if (this.isOver || data.length === 0) return;
    this.emit(kind, parse(data.join("\n")), id);
  }
}
