-- Timeouts by phase, and delayed starts.

-- A phase that takes too long may be tried again later, from wherever the ledger itself judges it.
alter table moves disable trigger moves_stay;
insert into moves (from_state, to_state) values
  ('QUEUED', 'RETRY_SCHEDULED'), ('WAITING_USER', 'RETRY_SCHEDULED'), ('WAITING_EXTERNAL', 'RETRY_SCHEDULED');
alter table moves enable trigger moves_stay;

alter table tasks
  add column policy          bytea not null default '',       -- a TaskPolicy of the contract; '' for its defaults
  add column timeout_retries int not null default 0 check (timeout_retries >= 0),
  add column queued_until    timestamptz,                     -- of a QUEUED task: longer is too long
  add column starts_at       timestamptz;                     -- of a QUEUED task: not to be offered yet

alter table tasks
  add constraint only_queued_tasks_queue_too_long check (queued_until is null or state = 'QUEUED'),
  add constraint only_queued_tasks_start_later check (starts_at is null or state = 'QUEUED');

-- What the sweeps look for.
create index tasks_queued_too_long on tasks (queued_until) where queued_until is not null and ending_state = '';
create index tasks_due_starts on tasks (starts_at) where starts_at is not null;

-- Offers do not meet what may not be started yet, however much of it there is.
drop index tasks_queue;
drop index tasks_any_queue;
create index tasks_queue on tasks (queue, priority, (claim_count = 0), created_at)
  where state = 'QUEUED' and ending_state = '' and starts_at is null;
create index tasks_any_queue on tasks (priority, (claim_count = 0), created_at)
  where state = 'QUEUED' and ending_state = '' and starts_at is null;
