-- What waiting tasks wait for. The wait is kept in the task's row while it lasts; afterwards its entries have it.
alter table tasks
  add column wait             bytea not null default '',      -- a Wait of the contract; '' for none
  add column wait_deadline_at timestamptz,
  add column wait_correlation text not null default '',       -- of a wait for an event: the name it comes by
  add column waiting_since    timestamptz;                    -- the whole task's clock stands still while it waits for a person

update tasks set waiting_since = updated_at where state in ('WAITING_USER', 'WAITING_EXTERNAL');

alter table tasks
  add constraint waiting_iff_since check ((state in ('WAITING_USER', 'WAITING_EXTERNAL')) = (waiting_since is not null)),
  add constraint only_waiting_tasks_have_a_wait check (wait = '' or waiting_since is not null),
  add constraint a_wait_has_a_deadline check ((wait <> '') = (wait_deadline_at is not null)),
  add constraint a_correlation_is_of_a_wait check (wait_correlation = '' or wait <> '');

-- What the sweeps look for, and events.
create index tasks_wait_deadlines on tasks (wait_deadline_at) where wait_deadline_at is not null;
create index tasks_wait_correlations on tasks (tenant, wait_correlation) where wait_correlation <> '';

-- Events from outside, by the name they come by: each is taken by one wait, the oldest first, or forgotten after a while.
create table signals (
  tenant         text not null,
  correlation_id text not null,
  request_id     text not null,
  position       bigint generated always as identity,
  hash           bytea not null,
  actor          text not null,
  payload        bytea not null,                              -- UTF-8 that may hold \u0000
  received_at    timestamptz not null default now(),
  taken_by       uuid,
  primary key (tenant, correlation_id, request_id)
);
create index signals_kept on signals (tenant, correlation_id, position) where taken_by is null;
create index signals_oldest on signals (received_at);
