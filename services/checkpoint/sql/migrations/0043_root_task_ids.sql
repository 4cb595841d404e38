-- Rows of a task have the root of its tree, as its own row has: with it, all rows of a tree can be kept on one node of
-- Citus (docs/citus.md). Rows from before have none: entries never change.

set lock_timeout = '5s';

alter table entries add column root_task_id uuid;
alter table foreign_requests add column root_task_id uuid;
alter table refusals add column root_task_id uuid;
alter table usage_reports add column root_task_id uuid;
alter table task_outputs add column root_task_id uuid;
alter table family_news add column root_task_id uuid;
