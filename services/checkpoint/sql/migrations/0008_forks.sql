-- Where a fork's history came from. The entries themselves are copied: a fork's ledger is whole by itself.
alter table tasks
  add column forked_from_task_id  uuid,
  add column forked_from_sequence bigint check (forked_from_sequence >= 1),
  add constraint a_fork_knows_its_point check ((forked_from_task_id is null) = (forked_from_sequence is null));

-- The forks of a task, newest first.
create index tasks_forks on tasks (forked_from_task_id, created_at desc, task_id desc) where forked_from_task_id is not null;
