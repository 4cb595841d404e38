-- Undos: which undo has an effect of a task, and the tasks whose effects are undone because they ended without success.

-- The exclusive right of an undo to a call of another task: one undo at a time has it. A later undo takes the right of
-- one that has ended (tenure/domain/undo.py decides), and an undo that has ended never runs again. The rows live as long
-- as the task whose call was undone.
create table undone_calls (
  task_id      uuid not null,
  call_id      text not null,
  undo_task_id uuid not null,
  primary key (task_id, call_id)
);

-- Tasks with the policy on_failure UNDO that ended without success, written with that end. A sweep creates their undos.
create table due_undos (
  task_id uuid primary key,
  due_at  timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
create index due_undos_due_at on due_undos (due_at);
