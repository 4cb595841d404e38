-- Undos: tasks that undo the effects of other tasks.

-- name: lock_source
-- The task whose effects are undone, locked: it neither ends nor begins an attempt meanwhile, and no other undo of it is
-- created.
select state, queue, priority, attempt, tools, loop from tasks
 where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b
   for update;

-- name: unlocked_source
-- The same without the lock, for a list.
select state, queue, priority, attempt, tools, loop from tasks
 where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b;

-- name: undos_of
-- The undos that have or had calls of a task, by call. The state is null for an undo that was pruned.
select u.call_id, u.undo_task_id::text, t.state
  from undone_calls u left join tasks t on t.task_id = u.undo_task_id
 where u.task_id = %(task_id)b::text::uuid;

-- name: take_calls
-- Gives calls to an undo: those that no undo has, and those of the named undos, which have ended. Returns the calls that
-- it got.
insert into undone_calls as u (task_id, call_id, undo_task_id)
select %(task_id)b::text::uuid, c.call_id, %(undo_task_id)b::text::uuid
  from unnest(%(call_ids)b::text[]) as c(call_id)
    on conflict (task_id, call_id) do update set undo_task_id = excluded.undo_task_id
 where u.undo_task_id = any(%(ended)b::text[]::uuid[])
returning u.call_id;

-- name: undone_of_history
-- The calls of a task's history through a step that an undo has undone, or may have. The history of a fork is also that of
-- the tasks that it was forked from; what was undone there before the fork, the fork itself has noted.
with recursive line as (
  select t.task_id, %(step)b::int as last_step, t.forked_from_task_id, t.forked_from_sequence, t.created_at,
         '-infinity'::timestamptz as noted_until
    from tasks t where t.task_id = %(task_id)b::text::uuid and t.tenant = %(tenant)b
   union all
  select t.task_id, least(l.last_step, e.step), t.forked_from_task_id, t.forked_from_sequence, t.created_at, l.created_at
    from line l join tasks t on t.task_id = l.forked_from_task_id
    join entries e on e.task_id = t.task_id and e.sequence = l.forked_from_sequence
)
select u.call_id, u.undo_task_id::text
  from line l join undone_calls u on u.task_id = l.task_id left join tasks t on t.task_id = u.undo_task_id
 where split_part(u.call_id, '.', 1)::int <= l.last_step
   and coalesce(t.created_at > l.noted_until, l.noted_until = '-infinity')
   and coalesce(t.ended_at is null or t.step > 0, true)
 order by split_part(u.call_id, '.', 1)::int, u.call_id;

-- name: note_due
-- Tasks that ended without success and want their effects undone.
insert into due_undos (task_id) select unnest(%(task_ids)b::text[]::uuid[])
    on conflict (task_id) do update set due_at = now();

-- name: due
-- The oldest of them.
select task_id::text from due_undos where due_at <= now() order by due_at limit %(limit)b;

-- name: take_due
-- One of them, locked and deleted. No row: another replica has it, or had it.
delete from due_undos
 where task_id = (select d.task_id from due_undos d
                   where d.task_id = %(task_id)b::text::uuid and d.due_at <= now() for update skip locked)
returning (select t.tenant from tasks t where t.task_id = due_undos.task_id);

-- name: postpone
-- One whose undo could not be created.
update due_undos set due_at = now() + make_interval(secs => %(seconds)b) where task_id = %(task_id)b::text::uuid;
