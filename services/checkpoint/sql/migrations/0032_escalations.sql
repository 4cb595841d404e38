-- When the next step of a wait's escalation is due. The wait in the row has the step itself.
alter table tasks
  add column wait_step_at timestamptz,
  add constraint only_a_wait_has_steps check (wait_step_at is null or wait <> '');

create index tasks_wait_steps on tasks (wait_step_at) where wait_step_at is not null;
