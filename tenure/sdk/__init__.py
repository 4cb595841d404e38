"""The public Python API, as `from tenure import …` gives it: Client, SyncClient, and what they take and return.

The files, in the order in which a call goes through them:

client.py          Client: submits, finds and follows tasks
task.py            Task: a handle on one task, with its result, its events and the answers to its waits
sync_client.py     SyncClient and SyncTask, generated from the two above by generate_sync.py
spool.py           Spool, SyncSpool: submits that are kept on disk while the gateway is away
spool_file.py      the rows of a spool's file
loop_thread.py     the event loop in which all SyncClients run
connection.py      addresses, keys and TLS, from arguments and the environment
submit_options.py  the options of a submit, described once: for Python, for HTTP and for the command
option_values.py   their values as the contract has them
submit_request.py  the request of a submit, from its options
task_filter.py     the filter of a list or a watch of tasks
task_ids.py        the id of a task from its first characters
answers.py         what an approval, a denial or an answer sends for each kind of wait
result_type.py     typed results: the JSON Schema of a Python type, and its values
from_wire.py       protobuf → public dataclasses, and nothing else
operations_info.py the public form of what the command shows besides tasks: the names of the fields, by message
operations_from_wire.py  those of them that are more than their fields
live_text.py       live text without repeats after a reconnect
task_info.py       tasks, waits, budgets and files as dataclasses
undo_info.py       the effects of a task and the plan of an undo, as dataclasses
agent_info.py      agents and their revisions as dataclasses
events.py          the events of a task as dataclasses
traces.py          spans of a task's trace
json_shape.py      the public JSON of all of them, also of `--json` at the command line
public_value.py    the public form of each message that a command prints
dataset.py         a task as one row of a dataset
errors.py          the errors, with what to do

Under it is tenure/client: the same calls with protobuf messages, and those for operators.

What to touch when:
- a submit, or a fork, gets a new option: one line in submit_options.py, and the field in protos/tenure/v1/task.proto
- a call gets a new argument: client.py or task.py, then `python -m tenure.sdk.generate_sync`
- a task or an entry gets a new field: task_info.py or events.py, from_wire.py, docs/json.md and the golden file
"""
