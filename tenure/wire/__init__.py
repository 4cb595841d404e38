"""Protobuf ↔ domain, and nothing else: no rule, no I/O. The only library code that reads tenure.v1 for the services.

common.py   states, priorities, classes        task.py     specs, usage, budgets
tool.py   definitions, outcomes, calls       ledger.py  the ledger's facts
token.py   claims and fencing tokens          common.py  errors inside frames
ledger.py  the answer to Open                 checkpoint_service.py facts cut to what one commit takes
"""
