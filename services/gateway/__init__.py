"""The gateway: serves the public API and forwards each request. It stores nothing.

The public API and the services behind it share the types of requests and answers: most methods are forwards.

main.py           the settings, and how the parts are put together
forwarder.py      the forward of every method that no file below defines, to the service with the same types
client_fields.py  the fields of a request that the gateway sets, whatever the client sent: actor, request id
tasks.py          TaskService: submit, cancel, resume, fork, files, wait for the end
tool_names.py     the check of tool names at submit
plans.py          the check of the expression of a plan, before the ledger records the plan
undo.py           PlanUndo, UndoTask: adds the present declarations of the tools
watch.py          WatchTask: entries, live text and heartbeats of one task
live_text.py      the live text of a task, relayed from the worker that holds it: one stream for all its watchers
pending_text.py   live text that waits for its reader, within bounds
task_changes.py   WatchTasks: the changes of all tasks of a tenant
explain.py        ExplainTask: reads what the services know about a task
explanation.py    the rule: from that knowledge to lines that say why the task is where it is (no I/O)
admin.py          AdminService: lists and requests of operators
task_acts.py      ActOnTasks: one verb for all tasks that a filter selects, page by page
stops.py          stops and their ends, in all services, and the calls in flight
in_doubt.py       lists of calls in doubt, and the proof that their runner is gone
external_entries.py  what clients and operators ask of a task, as entries of its ledger
forwarding.py     leases, schedules, tenants, webhooks, agents: the methods that do more than forward
http/             the HTTP server: JSON, server-sent events, and what edges add to it
audit.py          the audit log: records acts before they happen, and refusals
api_keys.py       the keys of clients: made here, and verified with the ledger
client_authentication.py  the client of each call: an API key (api_keys.py) or a token (json_web_tokens.py)
connection_limits.py  the rule of a port: how many connections, of one address and of all
grpc_connections.py  ends connections of an address beyond its limit at the gRPC port
client_addresses.py  the address of a client behind proxies (no I/O)
identity_claims.py  the identity that a token states (no I/O)
page_tokens.py    the seal of page tokens: a token of another list is refused
peers.py          the services behind the gateway, and the retries of calls to them

What to touch when:
- a public method is a forward: the RPC in the public service and in the one behind it, with the same messages
- it does more: a method in the servicer of its service
- a field only for services: the mark `by_gateway` in its rule in protos/; what it becomes: `client_fields.py`
- a field that needs more than the permission of its method: `permission` in its rule
- a field with which a call is recorded in the audit log: `audited` in its rule
"""
