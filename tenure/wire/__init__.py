"""Converts between protobuf messages and domain objects. Only opened.py has I/O.

The files, in the order in which data flows:

common.py                durations, timestamps, enums, errors inside stream frames, messages as JSON
codec.py                 makes the functions of a pair of types from the names of their fields
task.py                  task specs, policies, timeouts, waits, usage, budgets, prices
agent_service.py         agents and their revisions, and the digest of a definition
ledger.py                the entries of the ledger
opened.py                reads the answer to Open, in as many streams as it takes
checkpoint_service.py    splits entries into commits within the ledger's limits
coordinator_service.py   the slots of a worker
token.py                 signs and reads fencing tokens
access.py                the access rules of methods
audit.py                 audit records, and what a request acts on
tool_rules.py            rules on tool calls
call_plans.py            plans of calls
tool.py                  tool definitions, outcomes, call records, calls in doubt
stops.py                 stops, and what a request for one selects
undo.py                  the effects that an undo lists
tenant_service.py        quotas
schedule_service.py      the enums of schedules
webhook_service.py       the enums of webhooks, and their secrets as text
model_service.py         the size of messages of ModelService

What to touch when:
- a type gets a field: protos/ and tenure/domain, with the same name; codec.py has the rules for other names
- an entry gets a new kind: its pair in ledger.py, and the event in tenure/sdk/from_wire.py
- an enum gets a new value: protos/ and tenure/domain; common.py maps enums by name
"""
