"""Protobuf ↔ domain, and nothing else: no rule, no I/O. The only library code that reads tenure.v1 for the services.

enums.py   states, priorities, classes        task.py     specs, usage, budgets
tools.py   definitions, outcomes, calls       entries.py  the ledger's facts
token.py   claims and fencing tokens          refusal.py  errors inside frames
opened.py  the answer to Open                 portions.py facts cut to what one commit takes
"""
