-- Statements of `tenure serve checkpoint compare-records`, which an operator runs after a restore (docs/restore.md).

-- name: page_of_tasks
-- All tasks between two ids, with the calls whose outcome the ledger does not have.
select task_id::text, tenant, ended_at is null, claim_count, open_calls, wait
  from tasks where task_id > %(after)b::text::uuid and task_id <= %(until)b::text::uuid
 order by task_id limit %(limit)b;

-- name: entries_of_kinds
-- The entries of some kinds of several tasks: their intents, and the definitions of their tools.
select task_id::text, epoch, claim_id, body from entries
 where task_id = any(%(task_ids)b::text[]::uuid[]) and kind = any(%(kinds)b::bigint[])
 order by task_id, sequence;

-- name: known_by_prunings
-- Those of the tasks that were pruned. The tool service keeps their fences for ever.
select task_id::text from prunings where task_id = any(%(task_ids)b::text[]::uuid[]);

-- name: page_of_attempts
-- The newest model attempt of each task between two ids, and whether the call of a model runner is open.
select task_id::text, tenant, model_step, model_attempt, model_open and model_outlives
  from tasks where task_id > %(after)b::text::uuid and task_id <= %(until)b::text::uuid
 order by task_id limit %(limit)b;
