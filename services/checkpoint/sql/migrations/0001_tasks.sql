-- The tasks. 0004_guards.sql has the rules of their rows.

-- The allowed changes of a task's state (tenure/domain/states.py; a test compares them). A trigger reads this table.
create table moves (
  from_state text not null,
  to_state   text not null,
  primary key (from_state, to_state)
);
insert into moves (from_state, to_state) values
  ('QUEUED', 'RUNNING'), ('QUEUED', 'RETRY_SCHEDULED'), ('QUEUED', 'CANCELLED'), ('QUEUED', 'TIMED_OUT'),
  ('QUEUED', 'FAILED'),
  ('RUNNING', 'QUEUED'), ('RUNNING', 'WAITING_USER'), ('RUNNING', 'WAITING_EXTERNAL'), ('RUNNING', 'RETRY_SCHEDULED'),
  ('RUNNING', 'SUCCEEDED'), ('RUNNING', 'FAILED'), ('RUNNING', 'TIMED_OUT'), ('RUNNING', 'CANCELLED'),
  ('RUNNING', 'COST_EXCEEDED'),
  ('WAITING_USER', 'QUEUED'), ('WAITING_USER', 'RETRY_SCHEDULED'), ('WAITING_USER', 'TIMED_OUT'),
  ('WAITING_USER', 'CANCELLED'), ('WAITING_USER', 'FAILED'),
  ('WAITING_USER', 'COST_EXCEEDED'),     -- no budget was granted: the task ends at its cap
  ('WAITING_EXTERNAL', 'QUEUED'), ('WAITING_EXTERNAL', 'RETRY_SCHEDULED'), ('WAITING_EXTERNAL', 'TIMED_OUT'),
  ('WAITING_EXTERNAL', 'CANCELLED'), ('WAITING_EXTERNAL', 'FAILED'),
  ('RETRY_SCHEDULED', 'QUEUED'), ('RETRY_SCHEDULED', 'CANCELLED'), ('RETRY_SCHEDULED', 'TIMED_OUT'),
  ('RETRY_SCHEDULED', 'FAILED'),
  -- An operator lets a task wait, or closes it out as succeeded.
  ('QUEUED', 'WAITING_USER'), ('RETRY_SCHEDULED', 'WAITING_USER'),
  ('WAITING_EXTERNAL', 'WAITING_USER'),  -- the event arrives, and the operator's wait begins in the same transaction
  ('QUEUED', 'SUCCEEDED'), ('RETRY_SCHEDULED', 'SUCCEEDED'), ('WAITING_USER', 'SUCCEEDED'),
  ('WAITING_EXTERNAL', 'SUCCEEDED'),
  -- An ended task moves again only in a new attempt.
  ('FAILED', 'QUEUED'), ('TIMED_OUT', 'QUEUED'), ('CANCELLED', 'QUEUED'), ('COST_EXCEEDED', 'QUEUED');

-- The snapshot of each task: the result of its entries. The goal and the settings are in its first entry, so that a step
-- does not copy them. Pages keep free space, and no index covers a column that a step changes: steps are HOT updates.
create table tasks (
  task_id              uuid primary key,
  tenant               text not null,
  request_id           text not null,
  request_hash         bytea not null,

  -- The tree. A sub-agent is a task that a call of its parent spawned: the call, and the index of its goal in the call.
  root_task_id         uuid not null,
  parent_task_id       uuid,
  depth                smallint not null default 0,
  spawn_call_id        text not null default '',
  spawn_index          int not null default 0,
  sub_agents           int not null default 0,                -- how many it has spawned so far
  -- The origin of a fork's history. The entries are copied: the ledger of a fork is complete.
  forked_from_task_id  uuid,
  forked_from_sequence bigint,

  -- The source of the task and its run there; '' without one.
  source_kind          text not null default '',
  source_id            text not null default '',
  source_run_id        text not null default '',
  exclusive_source     text,                                  -- "<kind>/<source_id>" if the submit asked to be exclusive

  -- The part of the spec that the queue, the sweeps and the filters read.
  queue                text not null,
  priority             smallint not null,
  loop                 text not null,
  agent                text not null default '',
  agent_revision       integer not null default 0,
  tools                text[],                                -- null: all of the tenant's
  labels               jsonb not null,
  max_steps            int not null,
  on_lease_lost        text not null,
  policy               bytea not null default '',             -- a TaskPolicy of the contract; '': its defaults
  has_result_schema    boolean not null default false,

  state                text not null default 'QUEUED',
  reason               text not null default '',
  message              text not null default '',
  attempt              int not null default 1,
  timeout_retries      int not null default 0,
  result               bytea not null default '',             -- UTF-8 that may hold \u0000
  result_json          bytea not null default '',             -- the same; only with a result schema

  -- The fence: the claim of the newest Open, whether it still holds, and the newest registered grant.
  epoch                bigint not null default 0,
  claim_id             text not null default '',
  holds                boolean not null default false,
  owner                text not null default '',
  granted              bigint not null default 0,
  granted_claim        text not null default '',
  claim_count          int not null default 0,
  -- The workers that died with the task since its newest step, each once. Valid only while `deaths` is above 0: a step
  -- resets that number only, so that its statement stays small.
  deaths               int not null default 0,
  dead_owners          text[] not null default '{}',

  -- The newest commit of the newest Open, to recognise a repeat and to give it the same answer.
  commit_number        bigint not null default 0,
  last_commit_id       text not null default '',
  last_commit_hash     bytea not null default '',
  last_reply           bytea not null default '',
  last_base            bigint not null default 0,             -- the sequence before that commit

  sequence             bigint not null default 0,
  ledger_bytes         bigint not null default 0,             -- TENURE_CHECKPOINT_MAX_LEDGER_BYTES limits the bodies
  step                 int not null default 0,
  open_calls           text[] not null default '{}',          -- intents without an outcome
  change_xid           xid8 not null default '0',             -- of the newest row in `changes`

  -- The newest model attempt; at most one is open.
  model_open           boolean not null default false,
  model_outlives       boolean not null default false,        -- a model runner makes the call: it outlives the worker
  model_step           int not null default 0,
  model_attempt        int not null default 0,
  model_name           text not null default '',
  model_input          bigint not null default 0,
  model_output         bigint not null default 0,
  model_nano_usd       bigint not null default 0,             -- reserved for the open attempt
  model_prices         bytea not null default '',             -- ModelPrices of the contract; '': unknown

  input_tokens         bigint not null default 0,
  output_tokens        bigint not null default 0,
  cache_creation_input_tokens bigint not null default 0,
  cache_read_input_tokens     bigint not null default 0,
  used_nano_usd        bigint not null default 0,
  -- The most that the task may use of its root's budget; 0: all of it. A root has the caps of its budget.
  own_max_tokens       bigint not null default 0,
  own_max_nano_usd     bigint not null default 0,

  -- The requested end of the task; '' without a request. `ending_result` '': the last text of the agent is the result.
  ending_state         text not null default '',
  ending_reason        text not null default '',
  ending_message       text not null default '',
  ending_actor         text not null default '',
  ending_result        bytea not null default '',
  ending_at            timestamptz,

  -- The wait lasts as long as it is here; afterwards only the entries have it.
  wait                 bytea not null default '',             -- a Wait of the contract; '': none
  wait_deadline_at     timestamptz,
  wait_correlation     text not null default '',              -- of a wait for an event: the name of the event
  wait_step_at         timestamptz,                           -- when the next step of the escalation is due
  waiting_since        timestamptz,                           -- the deadline of the task stops during a wait for a person
  -- Of a wait with the reason TOOL_IN_DOUBT: "<call_id>:<attempt>" of each unresolved call; '{}' if the worker named none.
  calls_in_doubt       text[] not null default '{}',
  doubt_seen_at        timestamptz,                           -- when a coordinator last asked the tools about these calls
  operator_wait        bytea not null default '',             -- the OperatorRequest of a RUNNING task, until its wait begins

  queued_at            timestamptz default now(),             -- of a QUEUED task: since when it waits for a worker
  queued_until         timestamptz,                           -- of a QUEUED task: its queue timeout
  starts_at            timestamptz,                           -- of a QUEUED task: no offers before this time
  -- The start time of the request. A rate quota may delay the start; without the quota the task still does not start
  -- earlier than this.
  asked_start_at       timestamptz,
  offered_until        timestamptz,                           -- no offers to other coordinators before this time
  next_retry_at        timestamptz,
  -- After an operator took the task from its owner, until `steered_until`: the worker to avoid, or the only one to take it.
  steered_from         text not null default '',
  steered_to           text not null default '',
  steered_until        timestamptz,

  deadline_at          timestamptz not null,
  created_at           timestamptz not null default now(),
  updated_at           timestamptz not null default now(),
  started_at           timestamptz,
  ended_at             timestamptz,

  unique (tenant, request_id)
) with (fillfactor = 70,
        -- By default, autovacuum waits until a fifth of a table is dead. Measured (docs/postgres.md):
        -- entries and the calls of tools gain nothing.
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- Offers: each tenant's part of a queue is found alone, however long another part is. Begun tasks come before new ones,
-- then the order is age. Counts of queued tasks read it, too. Tasks that may not start yet are not in it.
create index tasks_queue on tasks (queue, loop, priority, tenant, (claim_count = 0), created_at) include (queued_at)
  where state = 'QUEUED' and ending_state = '' and starts_at is null;
-- An offered task counts as running when the queue compares tenants.
create index tasks_offered on tasks (tenant, offered_until)
  where state = 'QUEUED' and ending_state = '' and offered_until is not null;

-- Sweeps and reconcilers.
create index tasks_due_retries on tasks (next_retry_at) where state = 'RETRY_SCHEDULED';
create index tasks_due_starts on tasks (starts_at) where starts_at is not null;
create index tasks_queued_too_long on tasks (queued_until) where queued_until is not null and ending_state = '';
create index tasks_wait_deadlines on tasks (wait_deadline_at) where wait_deadline_at is not null;
create index tasks_wait_steps on tasks (wait_step_at) where wait_step_at is not null;
create index tasks_in_doubt on tasks (doubt_seen_at nulls first) where state = 'WAITING_USER' and reason = 'TOOL_IN_DOUBT';
-- While a task waits for a person its deadline does not run: such tasks would make each look for due work longer.
create index tasks_running_deadlines on tasks (deadline_at)
  where ended_at is null and ending_state = '' and state <> 'WAITING_USER';
create index tasks_endings on tasks (ending_at) where ended_at is null and ending_state <> '';
create index tasks_running on tasks (task_id) where holds;
-- Retention takes the oldest end first. Labelled tasks that it keeps are not in the index.
create index tasks_ended on tasks (ended_at)
  where ended_at is not null and not labels @> '{"tenure.retention": "keep"}'::jsonb;

-- Lists, newest first.
create index tasks_newest on tasks (tenant, created_at desc, task_id desc);
create index tasks_labels on tasks using gin (labels jsonb_path_ops);
create index tasks_source on tasks (tenant, source_kind, source_id, created_at desc, task_id desc) where source_id <> '';
create index tasks_source_kind on tasks (tenant, source_kind, created_at desc, task_id desc) where source_kind <> '';
create index tasks_forks on tasks (forked_from_task_id, created_at desc, task_id desc) where forked_from_task_id is not null;
-- Tasks of a state, also with one reason or of one queue, and the oldest of them; the tasks of an agent; the held tasks of
-- a tenant. No task is without a state: as a partial index the first is preferred to tasks_newest, also while tables are
-- empty. A rare reason or queue is found in the index alone: an index of its own would be written at each transition.
create index tasks_states on tasks (tenant, state, created_at desc, task_id desc, reason, queue collate "C")
  where state <> '';
create index tasks_agent on tasks (tenant, agent, created_at desc, task_id desc) where agent <> '';
create index tasks_held on tasks (tenant, task_id) where holds;
-- Waiting tasks by the deadline of the wait; those without one last.
create index tasks_waits on tasks (tenant, (coalesce(wait_deadline_at, 'infinity')), task_id) where waiting_since is not null;
-- Waits for the resolution of calls in doubt, the longest first.
create index tasks_in_doubt_of_tenants on tasks (tenant, waiting_since, task_id)
  where state = 'WAITING_USER' and reason = 'TOOL_IN_DOUBT';
create index tasks_wait_correlations on tasks (tenant, wait_correlation) where wait_correlation <> '';
-- The open tasks of each revision of an agent.
create index tasks_of_revisions on tasks (tenant, agent, agent_revision) where ended_at is null and agent <> '';

-- Trees: the sub-agents of a call, the living ones of a tree, and the tasks that want a larger budget.
create index tasks_root on tasks (root_task_id);
create unique index tasks_sub_agents on tasks (parent_task_id, spawn_call_id, spawn_index) where parent_task_id is not null;
create index tasks_living_sub_agents on tasks (root_task_id) where depth > 0 and ended_at is null;
create index tasks_wanting_budget on tasks (root_task_id) where state = 'WAITING_USER' and reason = 'BUDGET_REQUESTED';

-- A run of a source is one task. Forks that keep their source, and sub-agents, have no run.
create unique index tasks_source_run on tasks (tenant, source_kind, source_id, source_run_id) where source_run_id <> '';
-- An exclusive source has one living task.
create unique index tasks_one_per_source on tasks (tenant, exclusive_source)
  where exclusive_source is not null and ended_at is null;
