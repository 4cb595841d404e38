-- Undos: tasks that undo the effects of other tasks.

-- name: lock_source
-- The task whose effects are undone, locked: it neither ends nor begins an attempt meanwhile, and no other undo of it is
-- created.
select state, queue, priority, attempt, tools from tasks
 where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b
   for update;

-- name: unlocked_source
-- The same without the lock, for a list.
select state, queue, priority, attempt, tools from tasks
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
