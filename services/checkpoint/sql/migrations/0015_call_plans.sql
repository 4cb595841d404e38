-- The plans of task trees: later calls that a person approved at once. The tokens of the tree have those in force.
create table call_plans (
  plan_id      text        primary key,                       -- "<task_id>/<wait_id>" of the answered wait
  root_task_id uuid        not null references tasks on delete cascade,
  plan         bytea       not null,                          -- a CallPlan of the contract
  ends_at      timestamptz not null
);
create index call_plans_of_trees on call_plans (root_task_id, ends_at);
