"""Creates tasks.

source_defaults.py  the installation's defaults for the tasks of each source
creator.py          the connection that creates tasks in batches, and what is created alone
create.py           CreateTask: one task per request id, and at most one live task per exclusive source
source_lines.py     the lines of sources, as submits enter them, and bursts of submits
prepared_ids.py     ids of tasks whose files must be in place before they exist
undoing.py          PlanUndo, UndoTask: the effects of a task, and the task that undoes them
undo_sweeping.py    undoes the effects of tasks with the policy on_failure UNDO
undone_history.py   what an undo means for a new attempt and for forks of the task
forking.py          ForkTask: a task whose ledger begins with a copy of another task's history
fork_rules.py       where a history can be cut (no I/O)
spawning.py         sub-agents, created in the transaction that commits their call's intent
"""
