"""The public Python API, as `from tenure import …` gives it: Client, SyncClient, and what they take and return.

The files, in the order in which a call goes through them:

client.py          Client: submits, finds and follows tasks
task.py            Task: a handle on one task, with its result, its events and the answers to its waits
sync_client.py     SyncClient and SyncTask, generated from the two above by generate_sync.py
loop_thread.py     the event loop in which all SyncClients run
connection.py      addresses, keys and TLS, from arguments and the environment
submit_request.py  the request of a submit
answers.py         what an approval, a denial or an answer sends for each kind of wait
result_type.py     typed results: the JSON Schema of a Python type, and its values
from_wire.py       protobuf → public dataclasses, and nothing else
live_text.py       live text without repeats after a reconnect
task_info.py       tasks, waits, budgets and files as dataclasses
events.py          the events of a task as dataclasses
json_shape.py      the public JSON of all of them, also of `--json` at the command line
errors.py          the errors, with what to do

Under it is tenure/client: the same calls with protobuf messages, and those for operators.

What to touch when:
- a call gets a new argument: client.py or task.py, then `python -m tenure.sdk.generate_sync`
- a task or an entry gets a new field: task_info.py or events.py, from_wire.py, docs/json.md and the golden file
"""
