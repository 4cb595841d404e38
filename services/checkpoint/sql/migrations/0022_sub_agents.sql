-- Sub-agents: tasks that a call of another task spawned.
alter table tasks
  add column depth         smallint not null default 0 check (depth >= 0),
  add column spawn_call_id text not null default '',          -- of a sub-agent: the parent's call, and which of its goals
  add column spawn_index   int not null default 0 check (spawn_index >= 0),
  add column sub_agents    int not null default 0 check (sub_agents >= 0);  -- how many it has spawned so far

alter table tasks
  add constraint a_sub_agent_has_a_parent check (
    (parent_task_id is null) = (depth = 0) and (depth = 0) = (spawn_call_id = ''));

-- What a call spawned, and what of a tree is alive.
create unique index tasks_sub_agents on tasks (parent_task_id, spawn_call_id, spawn_index) where parent_task_id is not null;
create index tasks_living_sub_agents on tasks (root_task_id) where depth > 0 and ended_at is null;

-- What a family has to be told: that a sub-agent ended, or that a parent moved. Written with the move itself; taken out by
-- whoever acts on it. So no transaction has to lock parents and sub-agents at once.
create table family_news (
  position       bigint generated always as identity primary key,
  parent_task_id uuid not null,
  parent_moved   boolean not null                             -- else one of its sub-agents ended
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
