"""The `tenure` command: text for people, JSON for programs (`--json`), exit codes for scripts.

The files, in the order in which data flows:

__main__.py       `python -m tenure.cli`
main.py           the root command, and its options, four of which may stand anywhere on the line
groups.py         the sections of `tenure --help`, and the nouns
group.py          the click group: commands imported at their use, help in sections, errors as messages
context.py        the gateway's address, the tenant and the output mode of one invocation
found_gateway.py  the question before a command talks to the stack of another folder
parameters.py     types of options: durations, labels, dollars; TASK
task_filter.py    the options that select tasks
many_tasks.py     one verb for many tasks: the preview, the question, the outcomes
exit_codes.py     the exit codes; error_texts.py has the message and the code of each error
streams.py        the encoding of standard output and standard error
output.py         prints everything; escapes control characters
questions.py      questions to a person at the terminal; text from standard input
formatting.py     numbers, times, states and texts for people
entry_lines.py    one line for one entry

submit.py         submit; task_options.py has the options of a task, also for schedules
send_and_fork.py  tasks send, fork
undo.py           tasks undo
plans.py          tasks plans: what plans of calls have left, and the end of one
task_list.py      list
tasks.py          get, cancel, explain; tasks tree, entries, wait
trace.py          tasks trace: the waterfall of a task
watch.py          watch: one task, live. Entries flow through watch_state.py and narration.py to the screen here
watch_state.py    the state of the watched task: the fold of its entries, and the live text
watch_tree.py     what the sub-agents of the watched task need, a line each
narration.py      the lines that `watch` prints for each entry
top.py            top: tasks, workers and spend on one screen
follow.py         tasks follow: all tasks of a tenant
export.py         tasks export: tasks as a dataset
replay.py         tasks replay: a task again with another model, without effects
waits.py          waits, resume; tasks signal
answering.py      the text of a wait, the commands that answer it, the question in a terminal
files.py          files: a task's workspace
tools.py          tools: tool sources, tools, calls in doubt; effects.py has the calls that touched an effect
tool_rules.py     tools rules: a tenant's rules on the arguments of calls
receipts.py       receipts: verify; tools receipt, tools receipts
workers.py        workers: sessions, claims, queues; tasks refusals
leases.py         leases: named leases of other systems
agents.py         agents: their revisions and builds
schedules.py      schedules
webhooks.py       webhooks
approvers.py      approvers: the groups that may answer waits
tenants.py        tenants: quotas, bills
admin.py          admin: what only operators do
stops.py          admin stop, resume, stops
audit.py          admin audit: the audit log
verify.py         admin verify: checks tasks against the invariants; verify_report.py has the checks and what is printed
serve.py          serve: this process becomes a service
mcp.py            mcp: a server of the Model Context Protocol
outbox.py         outbox: submits in transactions of the caller's Postgres
keys.py           keys: signing keys of fencing tokens, certificates; api_keys.py has keys api
completion.py     completion: the scripts of shells
dev.py            dev: the development stack
dev_screen.py     its screen
dev_programs.py   programs of the user beside it, and their restart when their code changes
demo/             demo: a worker is frozen, another is killed, and the result is judged

What to touch when:
- a new command: its file, groups.py and docs/commands.md; what it prints with --json: tenure/sdk/operations_info.py
- a new kind of entry: entry_lines.py (`tenure tasks entries`), narration.py and watch_state.py (`tenure watch`)
- a new error: error_texts.py, if the message needs advice
"""
