-- What people look through who are to settle calls in doubt: the waits of their tenant's tasks, the longest first.
create index tasks_in_doubt_of_tenants on tasks (tenant, waiting_since, task_id)
 where state = 'WAITING_USER' and reason = 'TOOL_IN_DOUBT';
