// An agent of AG-UI: HttpAgent runs what its argument says and prints what a page would show.
//
// {url, threadId, runs: [{text, id, runId, approve, task}]}: each run has a message, or answers the interrupts of the
// last run. A run that breaks is sent again.
import { HttpAgent } from "@ag-ui/client";

const options = JSON.parse(process.argv[2]);
const agent = new HttpAgent({ url: options.url, threadId: options.threadId });
// A broken connection rejects the run, and once more a promise without a handler.
process.on("unhandledRejection", () => {});
const events = [];
let breaks = 0;
let interrupts = [];
let failed = null;

for (const run of options.runs) {
  if (run.text) agent.addMessage({ id: run.id, role: "user", content: run.text });
  const resume = run.text
    ? undefined
    : interrupts.map((one) => ({ interruptId: one.id, status: "resolved", payload: { approved: run.approve } }));
  const before = structuredClone(agent.messages);
  for (;;) {
    const seen = [];
    try {
      await agent.runAgent(
        { runId: run.runId, forwardedProps: { task: run.task }, resume },
        {
          onEvent({ event }) {
            seen.push(event.type);
          },
          onRunFinishedEvent({ event }) {
            interrupts = event.outcome?.interrupts ?? [];
          },
          onRunErrorEvent({ event }) {
            failed = event.message;
          },
        },
      );
      if (!seen.includes("RUN_FINISHED") && !seen.includes("RUN_ERROR")) throw new Error("the run did not finish");
      events.push(...seen);
      break;
    } catch (error) {
      breaks += 1;
      if (breaks > 300 || failed) throw error;
      agent.setMessages(structuredClone(before));
    }
  }
}
console.log(JSON.stringify({ messages: agent.messages, state: agent.state, events, breaks, interrupts, failed }));
