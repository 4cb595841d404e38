"""The rules of Tenure, as pure functions and values: no clock, no randomness, no I/O, no protos.

The files, in the order in which data flows:

submit
  task.py               the spec of a task, its limits and policy, all defaults, the model and cap of a submit
  schedules.py          due times of schedules
  quotas.py             a tenant's quotas: a later start, a refusal, a later model call
  result_schema.py      the schema of a result, and the validation of an answer
ledger
  entries.py            the entries, one class per kind
  fold.py               entries to a resume point
  states.py             states, reasons, and the table of allowed transitions
  traces.py             entries to the spans of a trace; also spans.py, semconv.py
  search.py             the words by which a search finds tasks
  task_ids.py           the first characters of ids
  fencing.py            epochs, fences, claims of a token, the worker's trust window
  admission.py          whether an Open or a Commit passes the fence
claim
  lease_ends.py         what stays of the lease of a lost claim
  fairness.py           the order of the queue, and free slots by tier
  stops.py              what a stop covers, and what is certain of a call in flight
  pools.py              which queues, loops and tenants a worker may serve
step
  next_action.py        the next action of the `messages` loop
  conversation.py       the messages of a model call
  compaction.py         when and how to shorten them
  budget.py             prices, reservations, settlements
  rate_limits.py        when the next call with a provider's key may go
  call_limits.py        limits of a client's calls
  tools.py              tools, call states, outcomes, unknown names, truncation, own tools
  texts.py              tokens of a text, text for people, spans of time, content that is kept as a file
  settlement.py         what is done to learn the end of a call, and what a check says
  argument_mapping.py   the arguments of a call that Tenure makes for another call
  json_pointers.py      one value of a JSON document
  tool_arguments.py     strict JSON, and arguments of tools that the ledger answers
  tool_rules.py         rules of tenants on tool calls: verdicts, and what bounds count
  call_plans.py         plans of calls: what an answer may approve at once, and what a call takes of a plan
  control.py            the loop of control functions
waits
  waits.py              wait kinds, answers, outcomes
  waiting_calls.py      calls that begin a wait
  sub_agents.py         spawns, shares, outcomes
  replay.py             what a record gives to a replay, and where the replay differs
  replay_of_code.py     the same for functions and agents in Python: their steps, model calls and messages
  in_doubt.py           calls in doubt and their resolutions; model calls that were lost
effects
  effect_keys.py        effect keys: what makes two calls the same effect; canonical JSON
  repeated_effects.py   what follows for a call whose effect key another call has had
  json_pointers.py      places in JSON documents
close-out
  close_out.py          endings, the outcomes of open calls, and tasks that kill their workers
  retry.py              backoff, and which failures are retried
  timeouts.py           phase timeouts and their actions
  requeue.py            requeues and grants by operators
  undo.py               which effects can be undone, and the course of the undo
  argument_mapping.py   arguments of a call from another call; json_pointers.py
access
  access.py             identities, permissions, and whether a caller may call a method
outside
  webhooks.py           event types, request bodies, responses, and which webhooks a replica sends for
  notifications.py      which changes become messages to people, and summaries
  email_addresses.py    the e-mail addresses that are accepted
  approvals.py          approver groups, and links by which people answer waits
  audit.py              the records of the audit log and their chain
  outputs.py            references to what a task produced
  outbound.py           URLs and addresses of untrusted sources and of workers
errors.py               every error that Tenure raises

A rule that only one service needs is a pure module of that service: services/checkpoint/submit/fork_rules.py,
services/checkpoint/retention_rules.py and halt_rules.py; services/models/failover.py;
services/gateway/client_addresses.py and identity_claims.py.

What to touch when:
- a new entry kind: entries.py and fold.py, then tenure/wire/ledger.py
- a new wait kind: waits.py and waiting_calls.py, then timeouts.py for its default
- a new transition: states.py, and the rule that decides it
"""
