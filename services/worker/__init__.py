"""The worker: takes tasks from a coordinator and runs them. It stores nothing.

The files, in the order in which data flows:

main.py             settings, and how the parts are put together
session.py          the session: attach to a coordinator, attach elsewhere after a break, drain, end
session_stream.py   one attachment: renewals, slots and releases out; grants, revocations and notices in
health.py           NOT_SERVING while the worker is not attached
supervisor.py       one coroutine per held task; crash backoff; drain
start_gate.py       spaces the starts of many tasks, so that renewals are answered in time
held_claims.py      the held tasks: claim, token and progress of each
interrupts.py       interruptions of a task, the step timeout, the trust window's gate
loop.py             the common part of all loops: open, work, close out
task_loop.py        the loop `messages` of agents
undo.py             the loop `tenure.undo`: calls that undo the effects of another task
replay.py           the loop `replay`: an agent whose tool calls are answered from the record of another task
control/            the loop `control` of control functions
agents.py           the definitions of this worker's agents and functions, and their registration
dependencies.py     the clients and defaults that all loops share

claim_ledger.py     a claim's ledger: Open, commits, the fold
ledger_client.py    the client of the checkpoint service
frame_client.py     the stream of frames under commits and tool calls, with repeats after a break

model_step.py       a model call of a step: reserve, call, commit the answer or the failure
model_attempt.py    the attempt in flight: shown, reported, settled when it is cut off
model_metrics.py    metrics of model calls
context_window.py   the tokens of the next call, and when to compact
budget_wait.py      how long to wait for budget
models.py           the port to the models, and the direct way to their providers (tenure/model_providers)
vendor_calls.py     the requests of the vendors' libraries in functions, to the model runners
model_runner.py     the way over the model runners, whose calls outlive this worker
live_text.py        the text of the model call in flight
live_server.py      WorkerService, which serves that text

tool_step.py        the tool calls of a step
tools_client.py     the client of the tool service
own_calls.py        the runs of own tools in this process
shown_images.py     the images of the conversation in a request to the model
kept_content.py     content that is too large for the ledger, as files of the workspace
transitions.py      how a task leaves the worker: after a failure, a timeout or an interruption; the close-out

What to touch when:
- a loop takes a new kind of action: tenure/domain/next_action.py and task_loop.py
- a further model vendor: tenure/model_providers (a file like openai_models.py, settings.py) and tenure/domain/models.py
- a task leaves the worker for a new reason: transitions.py
- worker and coordinator exchange a new message: session_stream.py, and sessions/session_stream.py of the coordinator
"""
