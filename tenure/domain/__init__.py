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
  traces.py             entries to the spans of a trace; also spans.py, trace_ids.py, semconv.py
  fencing.py            epochs, fences, claims of a token, the worker's trust window
  admission.py          whether an Open or a Commit passes the fence
claim
  fairness.py           the order of the queue
  slots.py              free slots by tier
  crash_loop.py         when a task that kills its workers fails
step
  next_action.py        the next action of the `messages` loop
  conversation.py       the messages of a model call
  compaction.py         when and how to shorten them
  budget.py             prices, reservations, settlements
  rate_limits.py        when the next call with a provider's key may go
  failover.py           which endpoint of a provider gets a call
  lost_model_calls.py   the bill of a model call without an answer
  tools.py              tools, call states, outcomes, unknown names, truncation
  tool_arguments.py     strict JSON, and arguments of tools that the ledger answers
  control.py            the loop of control functions
waits
  waits.py              wait kinds, answers, outcomes
  waiting_calls.py      calls that begin a wait
  sub_agents.py         spawns, shares, outcomes
  replay.py             what a record gives to a replay, and where the replay differs
  in_doubt.py           calls in doubt and their resolutions
close-out
  close_out.py          endings, and the outcomes of open calls
  retry.py              backoff, and which failures are retried
  timeouts.py           phase timeouts and their actions
  requeue.py            requeues and grants by operators
  forks.py              where a history can be cut
  retention.py          the retention time, and batches of a prune
access
  access.py             identities, permissions, and whether a caller may call a method
  client_addresses.py   the address of a client behind proxies
outside
  webhooks.py           event types, request bodies, responses
  sender_leases.py      which webhooks a replica sends for
  email_addresses.py    the e-mail addresses that are accepted
  outbound.py           URLs and addresses of untrusted sources
errors.py               every error that Tenure raises

What to touch when:
- a new entry kind: entries.py and fold.py, then tenure/wire/ledger.py
- a new wait kind: waits.py and waiting_calls.py, then timeouts.py for its default
- a new transition: states.py, and the rule that decides it
"""
