-- When coordinators were last told of a task that waits for a word on calls in doubt: they ask the tools whether it still has to.
alter table tasks add column doubt_seen_at timestamptz;
create index tasks_in_doubt on tasks (doubt_seen_at nulls first) where state = 'WAITING_USER' and reason = 'TOOL_IN_DOUBT';
