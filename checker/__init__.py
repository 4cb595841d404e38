"""The checker: compares the history of an installation with the invariants I1 to I47.

collect.py        builds histories: over the public API task by task, and from files outside of the installation
history.py        the records of a history: ledger, tool service, etcd, outside effects, and the clients' logs
reading.py        how checks read a ledger, and how their messages name entries and claims
check.py          what a check is, and the table of invariants
checks/           the checks:
  fencing.py        I1 to I6 and I29: claims in etcd, accepted writes, refused writes
  ledger.py         I7, I8, I16, I20 to I23, I30, I32, I37, I41: sequences, transitions, conversations, waits, outputs
  tool_calls.py     I12 to I15, I19 and I40: tool calls, effects, calls in doubt
  receipts.py       I42: the chain of receipts
  effect_keys.py    I44: effects with an effect key
  budgets.py        I17 to I19: reservations, budgets, bills
  clients.py        I9 to I11 and I24 to I28: answers to clients, streams
  task_trees.py     I36, I38 and I39: forks and sub-agents
  undos.py          I45: undos
  stops.py          I43: stops of operators
  bounds.py         I46: rules with bounds
  source_lines.py   I47: the tasks of a source
verify.py         runs the checks: verify(history) → violations; examine(history) → a report with the checks not run

A checker that shares a fault with the product proves nothing. So the checker states the rules of fences, sequences and
intents a second time, independently of the product's code.

What to touch when:
- a new invariant: `INVARIANTS` in check.py, and a `Check` or `SumCheck` in the fitting module of checks/
- a new source of evidence: a record and a field of `History` in history.py, and collect.py
"""
