-- Statements of the commands that an operator runs after a restore (docs/restore.md).

-- name: page_of_fences
-- All tasks that this service knows, in the order of their ids.
select task_id::text, tenant from fences where task_id > %(after)b::text::uuid order by task_id limit %(limit)b;

-- name: calls_of_tasks
-- The records of several tasks, without arguments and outcomes.
select task_id::text, call_id, tool, effect_class, state, accepted_at from calls
 where task_id = any(%(task_ids)b::text[]::uuid[]) order by task_id, call_id;

-- name: insert_doubts
-- Records of calls whose own records were lost, in doubt. A record that exists is not changed.
insert into calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt, epoch, claim_id,
                   doubted_at, doubt_note)
values (%(task_id)b::text::uuid, %(call_id)b, %(tool)b, %(effect_class)b, %(arguments_hash)b, %(arguments)b, 'IN_DOUBT', 1,
        %(epoch)b::bigint, %(claim_id)b, clock_timestamp(), %(note)b)
on conflict (task_id, call_id) do nothing
returning call_id;
