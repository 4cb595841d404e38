-- Offers that are fair between tenants: each tenant's part of a queue is found by itself, however long another's is.

alter table tasks
  add column queued_at timestamptz default now();             -- of a QUEUED task: since when it has waited for a worker

update tasks set queued_at = case when state = 'QUEUED' then coalesce(starts_at, updated_at) end;
alter table tasks
  add constraint queued_since_iff_queued check ((state = 'QUEUED') = (queued_at is not null));

-- Of each tenant: tasks that were begun before new ones, then age. What is queued is counted in it, too.
drop index tasks_queue;
drop index tasks_any_queue;
create index tasks_queue on tasks (queue, loop, priority, tenant, (claim_count = 0), created_at) include (queued_at)
  where state = 'QUEUED' and ending_state = '' and starts_at is null;

-- What is on its way to a worker counts as running where tenants are compared.
create index tasks_offered on tasks (tenant, offered_until)
  where state = 'QUEUED' and ending_state = '' and offered_until is not null;
