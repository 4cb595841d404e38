-- outside a transaction
-- The deadlines that run. While a task waits for a person its deadline does not run: with those tasks in the index, each
-- look for due work walked all whose deadline had passed.
drop index concurrently if exists tasks_running_deadlines;
create index concurrently tasks_running_deadlines on tasks (deadline_at)
  where ended_at is null and ending_state = '' and state <> 'WAITING_USER';
drop index concurrently if exists tasks_deadlines;
