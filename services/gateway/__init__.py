"""The gateway: serves the public API and forwards each request. It stores nothing.

main.py           the settings, and how the parts are put together
tasks.py          TaskService: submit, cancel, resume, fork, files, wait for the end
tool_names.py     the check of tool names at submit
watch.py          WatchTask: entries, live text and heartbeats of one task
live_text.py      the live text of a task, relayed from the worker that holds it: one stream for all its watchers
pending_text.py   live text that waits for its reader, within bounds
task_changes.py   WatchTasks: the changes of all tasks of a tenant
explain.py        ExplainTask: reads what the services know about a task
explanation.py    the rule: from that knowledge to lines that say why the task is where it is (no I/O)
agents.py         AgentService, forwarded
admin.py          AdminService: lists and requests of operators
in_doubt.py       lists and resolutions of calls in doubt
forwarding.py     LeaseService, ScheduleService, TenantService and WebhookService, forwarded
approvals.py      approver groups, forwarded
answer_links.py   the pages of answer links, for people without an account
http/             the HTTP server: JSON, server-sent events, the console
audit.py          the audit log: records acts before they happen, and refusals
client_authentication.py  the client of each call: an API key (api_keys.py) or a token (json_web_tokens.py)
page_tokens.py    the seal of page tokens: a token of another list is refused
peers.py          the services behind the gateway, and the retries of calls to them
"""
