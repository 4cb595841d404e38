// The changes of all tasks of the tenant: one stream for the whole console, to which pages subscribe.

import { Stream } from "./stream.js";

const subscribers = new Set();
let stream = null;
let status = "connecting";

// on.change(change), on.ready(): the list may be read now and misses no later change; on.status(status).
// Returns the function that ends the subscription.
export function subscribe(on) {
  subscribers.add(on);
  on.status?.(status);
  return () => subscribers.delete(on);
}

function tell(name, value) {
  for (const on of [...subscribers]) on[name]?.(value);
}

// Opens the stream anew, as for another tenant.
export function followChanges() {
  stream?.stop();
  let isReady = false;
  stream = new Stream("/v1/changes", {}, {
    event: (data, id, kind) => {
      if (!isReady) {
        isReady = true;
        tell("ready");
      }
      if (kind !== "heartbeat" && data.kind !== "heartbeat") tell("change", data);
    },
    status: (now, error) => {
      status = now;
      tell("status", now, error);
    },
    expired: () => {
      isReady = false; // What was missed is read again.
    },
  });
}

export function stopChanges() {
  stream?.stop();
  stream = null;
}
