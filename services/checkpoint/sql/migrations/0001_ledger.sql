-- The work ledger. Everything that must never be is a CHECK here, whatever the code above it does.

-- The one table of moves (tenure/domain/states.py; a test compares them). The trigger below asks it.
create table moves (
  from_state text not null,
  to_state   text not null,
  primary key (from_state, to_state)
);
insert into moves (from_state, to_state) values
  ('QUEUED', 'RUNNING'), ('QUEUED', 'CANCELLED'), ('QUEUED', 'TIMED_OUT'), ('QUEUED', 'FAILED'),
  ('RUNNING', 'QUEUED'), ('RUNNING', 'WAITING_USER'), ('RUNNING', 'WAITING_EXTERNAL'), ('RUNNING', 'RETRY_SCHEDULED'),
  ('RUNNING', 'SUCCEEDED'), ('RUNNING', 'FAILED'), ('RUNNING', 'TIMED_OUT'), ('RUNNING', 'CANCELLED'),
  ('RUNNING', 'COST_EXCEEDED'),
  ('WAITING_USER', 'QUEUED'), ('WAITING_USER', 'TIMED_OUT'), ('WAITING_USER', 'CANCELLED'), ('WAITING_USER', 'FAILED'),
  ('WAITING_EXTERNAL', 'QUEUED'), ('WAITING_EXTERNAL', 'TIMED_OUT'), ('WAITING_EXTERNAL', 'CANCELLED'),
  ('WAITING_EXTERNAL', 'FAILED'),
  ('RETRY_SCHEDULED', 'QUEUED'), ('RETRY_SCHEDULED', 'CANCELLED'), ('RETRY_SCHEDULED', 'TIMED_OUT');

-- The snapshot row of each task: what its entries come to. Its goal and settings are in its first entry, so that a step
-- does not copy them. Room is left in the pages and no index covers a column that a step changes: steps are HOT updates.
create table tasks (
  task_id          uuid primary key,
  tenant           text not null,
  request_id       text not null,
  request_hash     bytea not null,
  parent_task_id   uuid,
  root_task_id     uuid not null,

  -- What the queue, the sweeps and filters need of the spec.
  queue            text not null,
  priority         smallint not null check (priority between 1 and 3),
  loop             text not null,
  tools            text[],                                    -- null: all of the tenant's
  labels           jsonb not null,
  max_steps        int not null check (max_steps > 0),
  on_lease_lost    text not null constraint tasks_on_lease_lost check (on_lease_lost in ('RESUME', 'TIME_OUT')),

  state            text not null default 'QUEUED' constraint tasks_state check (state in (
                     'QUEUED', 'RUNNING', 'WAITING_USER', 'WAITING_EXTERNAL', 'RETRY_SCHEDULED',
                     'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'COST_EXCEEDED')),
  reason           text not null default '',
  message          text not null default '',
  attempt          int not null default 1 check (attempt >= 1),
  result           bytea not null default '',                 -- UTF-8 that may hold \u0000

  -- The fence: the newest Open's claim, whether it still holds, and the newest registered grant.
  epoch            bigint not null default 0 check (epoch >= 0),
  claim_id         text not null default '',
  holds            boolean not null default false,
  owner            text not null default '',
  granted          bigint not null default 0 check (granted >= 0),
  granted_claim    text not null default '',
  claim_count      int not null default 0 check (claim_count >= 0),
  deaths           int not null default 0 check (deaths >= 0),

  -- The newest commit of the newest Open, to know a repeat and to answer it as the first time.
  commit_number    bigint not null default 0 check (commit_number >= 0),
  last_commit_id   text not null default '',
  last_commit_hash bytea not null default '',
  last_reply       bytea not null default '',
  last_base        bigint not null default 0,                 -- the sequence before that commit

  sequence         bigint not null default 0 check (sequence >= 0),
  step             int not null default 0 check (step >= 0),
  open_calls       text[] not null default '{}',              -- intents without an outcome

  -- The newest model attempt; at most one is open.
  model_open       boolean not null default false,
  model_step       int not null default 0,
  model_attempt    int not null default 0,
  model_name       text not null default '',
  model_input      bigint not null default 0 check (model_input >= 0),
  model_output     bigint not null default 0 check (model_output >= 0),

  input_tokens     bigint not null default 0 check (input_tokens >= 0),
  output_tokens    bigint not null default 0 check (output_tokens >= 0),
  cache_creation_input_tokens bigint not null default 0 check (cache_creation_input_tokens >= 0),
  cache_read_input_tokens     bigint not null default 0 check (cache_read_input_tokens >= 0),

  -- How the task is to end, once somebody asked for it; '' while nobody did.
  ending_state     text not null default '' constraint tasks_ending_state check (ending_state in (
                     '', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'COST_EXCEEDED')),
  ending_reason    text not null default '',
  ending_message   text not null default '',
  ending_actor     text not null default '',
  ending_at        timestamptz,

  offered_until    timestamptz,                               -- kept from other coordinators until then
  next_retry_at    timestamptz,
  deadline_at      timestamptz not null,
  created_at       timestamptz not null default now(),
  updated_at       timestamptz not null default now(),
  started_at       timestamptz,
  ended_at         timestamptz,

  unique (tenant, request_id),
  constraint running_iff_held check ((state = 'RUNNING') = holds),
  constraint a_claim_is_whole check ((epoch > 0) = (claim_id <> '') and (not holds or epoch > 0)),
  constraint owned_iff_held check (holds or owner = ''),
  constraint opened_only_when_granted check (granted >= epoch),
  constraint retry_iff_scheduled check ((state = 'RETRY_SCHEDULED') = (next_retry_at is not null)),
  constraint ended_iff_terminal check (
    (state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'COST_EXCEEDED')) = (ended_at is not null)),
  constraint ended_without_open_calls check (ended_at is null or open_calls = '{}'),
  constraint attempts_only_while_running check (not model_open or holds),
  constraint an_ending_has_a_time check ((ending_state <> '') = (ending_at is not null))
) with (fillfactor = 70);

-- Offers, by priority, tasks that were begun before new ones, then age: of one queue, and of any.
create index tasks_queue on tasks (queue, priority, (claim_count = 0), created_at)
  where state = 'QUEUED' and ending_state = '';
create index tasks_any_queue on tasks (priority, (claim_count = 0), created_at)
  where state = 'QUEUED' and ending_state = '';
-- What the sweeps and the reconcilers look for.
create index tasks_due_retries on tasks (next_retry_at) where state = 'RETRY_SCHEDULED';
create index tasks_deadlines on tasks (deadline_at) where ended_at is null and ending_state = '';
create index tasks_endings on tasks (ending_at) where ended_at is null and ending_state <> '';
create index tasks_running on tasks (task_id) where holds;
-- Lists, newest first.
create index tasks_newest on tasks (tenant, created_at desc, task_id desc);
create index tasks_labels on tasks using gin (labels jsonb_path_ops);
create index tasks_root on tasks (root_task_id);

create function refuse_unknown_move() returns trigger language plpgsql as $$
begin
  if not exists (select from moves where from_state = old.state and to_state = new.state) then
    raise exception 'a % task cannot become %', old.state, new.state using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger moves before update of state on tasks for each row
  when (old.state is distinct from new.state) execute function refuse_unknown_move();

-- Each task's one append-only sequence of facts. `kind` is the field number of the body in EntryBody's oneof.
create table entries (
  task_id     uuid not null,
  sequence    bigint not null check (sequence >= 1),
  tenant      text not null,
  epoch       bigint not null,
  claim_id    text not null,
  attempt     int not null,
  step        int not null,
  kind        smallint not null check (kind >= 1),
  actor       text not null,
  recorded_at timestamptz not null,
  body        bytea not null,
  primary key (task_id, sequence)
) partition by hash (task_id);

-- The default storage would compress every body: measured, 60 % of a commit's time. Each partition has its own setting.
do $$ begin
  for i in 0..15 loop
    execute format('create table entries_%s partition of entries for values with (modulus 16, remainder %s)', i, i);
    execute format('alter table entries_%s alter body set storage external', i);
  end loop;
end $$;

create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'entries are never changed' using errcode = 'check_violation';
end $$;
create trigger entries_stay before update or delete on entries for each row execute function refuse_change();

-- What each root may use and has used. `used` may pass the cap by what a provider billed beyond our upper bound.
create table budgets (
  root_task_id    uuid primary key,
  tenant          text not null,
  max_tokens      bigint not null check (max_tokens > 0),
  used_tokens     bigint not null default 0 check (used_tokens >= 0),
  reserved_tokens bigint not null default 0 check (reserved_tokens >= 0)
) with (fillfactor = 70);

-- The bill: one row per settled model attempt. `lost`: estimated, because its worker died.
create table token_usage (
  task_id      uuid not null,
  step         int not null,
  attempt_number int not null,
  tenant       text not null,
  root_task_id uuid not null,
  epoch        bigint not null,
  model        text not null,
  provider_request_id text not null,
  lost         boolean not null,
  input_tokens bigint not null check (input_tokens >= 0),
  output_tokens bigint not null check (output_tokens >= 0),
  cache_creation_input_tokens bigint not null check (cache_creation_input_tokens >= 0),
  cache_read_input_tokens     bigint not null check (cache_read_input_tokens >= 0),
  settled_at   timestamptz not null,
  primary key (task_id, step, attempt_number)
);
create index token_usage_root on token_usage (root_task_id);

-- Facts of others, known again by the id their caller gave them.
create table foreign_requests (
  task_id    uuid not null,
  request_id text not null,
  tenant     text not null,
  hash       bytea not null,
  sequence   bigint not null,
  primary key (task_id, request_id)
);

-- Writes that a fence refused. Bounded per task by the statement that inserts.
create table refusals (
  refusal_id      bigint generated always as identity primary key,
  task_id         uuid not null,
  tenant          text not null,
  method          text not null,
  presented_epoch bigint not null,
  current_epoch   bigint not null,
  holder          text not null,
  refused_at      timestamptz not null
);
create index refusals_task on refusals (task_id, refusal_id desc);

-- One row: the lives of etcd so far, and the highest epoch that was ever registered.
create table epochs (
  one           boolean primary key default true check (one),
  generation    bigint not null check (generation between 1 and 8388607),
  highest_epoch bigint not null default 0 check (highest_epoch >= 0)
);
insert into epochs (generation) values (1);
