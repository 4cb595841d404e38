-- Tasks that wait, by the deadline of their wait; those without one last.
create index tasks_waits on tasks (tenant, (coalesce(wait_deadline_at, 'infinity')), task_id) where waiting_since is not null;
