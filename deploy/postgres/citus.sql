-- Distributes a new ledger over the nodes of a Citus cluster (docs/citus.md): run by psql on the coordinator node, as the
-- owner of the schema, after root_keys.sql.
set search_path = ledger, public;
set citus.enable_unsafe_triggers = on;

-- What no key with the root can keep unique. Until each of them has a table of its own, Citus refuses no second task for
-- them: docs/citus.md.
alter table tasks drop constraint tasks_tenant_request_id_key;
create index tasks_by_request on tasks (tenant, request_id);
drop index tasks_one_per_source;
create index tasks_one_per_source on tasks (tenant, exclusive_source)
  where exclusive_source is not null and ended_at is null;
drop index tasks_source_run;
create index tasks_source_run on tasks (tenant, source_kind, source_id, source_run_id) where source_run_id <> '';

-- Settings, which every node reads: on each node.
alter table moves disable trigger moves_stay;  -- its rows are copied
select create_reference_table('moves');
alter table moves enable trigger moves_stay;
select create_reference_table('tenants');
select create_reference_table('agents');
select create_reference_table('agent_revisions');
select create_reference_table('agent_builds');

-- Rows of a task: on the node of their root.
select create_distributed_table('tasks', 'root_task_id');
select create_distributed_table('entries', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('budgets', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('token_usage', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('usage_reports', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('foreign_requests', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('refusals', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('task_outputs', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('prunings', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('family_news', 'root_task_id', colocate_with => 'tasks');
select create_distributed_table('raised_budgets', 'root_task_id', colocate_with => 'tasks');

-- Everything else stays on the coordinator node. The change feed must: its order is that of the transactions of one node.
-- on the coordinator: answer_links api_keys approver_groups audit_records change_feed changes epochs lease_grants
-- on the coordinator: migrations prepared_forks schedule_runs schedules signals tenant_warnings tenant_windows
-- on the coordinator: trace_feed traced_tasks webhook_deliveries webhook_gaps webhooks
