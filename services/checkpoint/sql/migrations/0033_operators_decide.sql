-- An operator may let a task wait, and close it out as succeeded.
alter table moves disable trigger moves_stay;
insert into moves (from_state, to_state) values
  ('QUEUED', 'WAITING_USER'), ('RETRY_SCHEDULED', 'WAITING_USER'),
  ('WAITING_EXTERNAL', 'WAITING_USER'),  -- the event arrives, and the operator's wait begins in the same transaction
  ('QUEUED', 'SUCCEEDED'), ('RETRY_SCHEDULED', 'SUCCEEDED'), ('WAITING_USER', 'SUCCEEDED'),
  ('WAITING_EXTERNAL', 'SUCCEEDED');
alter table moves enable trigger moves_stay;

-- The wait that an operator requested while the task was RUNNING: an OperatorRequest, until the wait begins.
alter table tasks
  add column operator_wait bytea not null default '',
  add constraint only_living_tasks_will_wait check (operator_wait = '' or ended_at is null);

alter table tasks
  drop constraint tasks_ending_state,
  add constraint tasks_ending_state check (ending_state in (
    '', 'CANCELLED', 'TIMED_OUT', 'FAILED', 'COST_EXCEEDED', 'SUCCEEDED'));
