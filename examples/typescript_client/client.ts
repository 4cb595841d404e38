// Submits a task, prints what the agent says and does, and continues the stream when it breaks: `node client.ts GOAL`.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import type { Entry } from "./gen/tenure/v1/ledger_pb.js";
import { TaskState } from "./gen/tenure/v1/task_pb.js";
import { TaskService } from "./gen/tenure/v1/task_service_pb.js";

const ENDED = new Set([
  TaskState.SUCCEEDED,
  TaskState.FAILED,
  TaskState.TIMED_OUT,
  TaskState.CANCELLED,
  TaskState.COST_EXCEEDED,
]);
const TRIES = 10;

const address = process.env["TENURE_ADDRESS"] ?? "127.0.0.1:8470";
const tasks = createClient(TaskService, createGrpcTransport({ baseUrl: `http://${address}` }));

// A lost answer is not a lost task: the repeat has the same request id, and gets the same task.
async function submit(goal: string, model: string): Promise<string> {
  const request = { requestId: randomUUID(), spec: { goal, agent: { model } } };
  const answer = await retried(() => tasks.submitTask(request));
  return answer.task!.taskId;
}

// Yields each entry of the task once and in order, also across lost connections and restarts of the gateway.
async function* entries(taskId: string): AsyncGenerator<Entry> {
  let sequence = 0n;
  for (let failures = 0; ; ) {
    try {
      for await (const { event } of tasks.watchTask({ taskId, afterSequence: sequence })) {
        failures = 0;
        if (event.case !== "entry") continue; // a heartbeat
        sequence = event.value.sequence;
        yield event.value;
      }
      return; // the stream ends after the entry that ends the task
    } catch (error) {
      if (!isTemporary(error) || ++failures === TRIES) throw error;
      await sleep(100 * 2 ** failures);
    }
  }
}

async function retried<T>(call: () => Promise<T>): Promise<T> {
  for (let failures = 0; ; ) {
    try {
      return await call();
    } catch (error) {
      if (!isTemporary(error) || ++failures === TRIES) throw error;
      await sleep(100 * 2 ** failures);
    }
  }
}

// The contract: UNAVAILABLE and CANCELLED by the server mean that the same request may be repeated.
function isTemporary(error: unknown): boolean {
  return error instanceof ConnectError && [Code.Unavailable, Code.Canceled, Code.Aborted].includes(error.code);
}

function print(entry: Entry): void {
  const body = entry.body?.body;
  switch (body?.case) {
    case "assistantMessage":
      for (const block of JSON.parse(body.value.contentJson)) {
        if (block.type === "text") console.log(block.text);
      }
      break;
    case "toolIntent":
      console.log(`→ ${body.value.tool} ${body.value.argumentsJson}`);
      break;
    case "transition":
      if (ENDED.has(body.value.toState)) {
        console.log(`${TaskState[body.value.toState]} ${body.value.reason}: ${body.value.result}`);
        process.exitCode = body.value.toState === TaskState.SUCCEEDED ? 0 : 1;
      }
      break;
  }
}

const [goal = "Say hello", model = ""] = process.argv.slice(2);
const taskId = await submit(goal, model);
console.log(`task ${taskId}`);
for await (const entry of entries(taskId)) print(entry);
