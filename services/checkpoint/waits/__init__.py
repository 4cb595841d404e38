"""Waits: tool calls that a person, an event or sub-agents answer.

waits.py             begins, answers and closes waits in drafts
escalating.py        takes one step of a wait's escalation
call_plans.py        plans of calls that answers approve: their number, their list, their end
signals.py           signals from outside, kept until a wait takes them
sub_agent_waits.py   a parent's wait for the sub-agents of a call
passed_messages.py   passes interrupting messages on to sub-agents
sub_agent_events.py  wakes parents whose sub-agents have ended, and cancels sub-agents that no parent awaits
budget_waits.py      waits for budget, and the tasks of a tree whose budget was raised
operator_waits.py    operators' waits of tasks that have not started
in_doubt.py          waits for resolutions of calls in doubt

What to touch when you add a wait kind: task.proto, tenure/domain/waits.py, tenure/wire/task.py, and here the module
that ends such a wait. Deadlines of waits are in `services/checkpoint/queue/sweeps.py`.
"""
