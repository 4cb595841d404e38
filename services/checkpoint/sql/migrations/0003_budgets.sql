-- Budgets and bills. 0004_guards.sql has the rules of their rows.

-- The caps, the use and the reservations of each root, in tokens and in nano US dollars; a money cap of 0 means no cap.
--
-- Used and reserved amounts never pass a cap, because every write of a row is checked. The amounts by which calls exceeded
-- their reservations are counted in the beyond columns: a call that was made cannot be undone. The rule holds for a new
-- row, for a reservation of a free amount, for a settlement (it returns what it counts as used, or counts it as beyond)
-- and for a raised cap: so it holds at every moment.
create table budgets (
  root_task_id      uuid primary key,
  tenant            text not null,
  max_tokens        bigint not null,
  used_tokens       bigint not null default 0,
  reserved_tokens   bigint not null default 0,
  beyond_tokens     bigint not null default 0,
  max_nano_usd      bigint not null default 0,
  is_default_cap    boolean not null default false,           -- in money: no submit asked for it
  used_nano_usd     bigint not null default 0,
  reserved_nano_usd bigint not null default 0,
  beyond_nano_usd   bigint not null default 0,
  unpriced_calls    bigint not null default 0,                -- settled, and not in used_nano_usd
  -- The caps of the newest warning: after a raise there is a new warning.
  warned_tokens     bigint not null default 0,
  warned_nano_usd   bigint not null default 0
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- The roots with a raised cap, until the tasks of their trees that wanted budget are queued. The trigger of `budgets`
-- writes it, so that every way to raise a cap continues them.
create table raised_budgets (
  position     bigint generated always as identity primary key,
  root_task_id uuid not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- The bill: one row per settled model attempt. `lost`: estimated, because the worker died.
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
  input_tokens bigint not null,
  output_tokens bigint not null,
  cache_creation_input_tokens bigint not null,
  cache_read_input_tokens     bigint not null,
  nano_usd     bigint not null default 0,
  unpriced     boolean not null default true,
  settled_at   timestamptz not null,
  primary key (task_id, step, attempt_number)
);
create index token_usage_root on token_usage (root_task_id);
-- The bill of a tenant over time.
create index token_usage_tenant on token_usage (tenant, settled_at);

-- A worker that lost its claim may report the usage of its last model call: once, the report replaces the estimate in the
-- bill, and the estimate stays here. Kept as long as the bills.
create table usage_reports (
  task_id        uuid not null,
  step           int not null,
  attempt_number int not null,
  holder         text not null,
  reported_at    timestamptz not null,
  provider_request_id text not null,
  input_tokens   bigint not null check (input_tokens >= 0),
  output_tokens  bigint not null check (output_tokens >= 0),
  cache_creation_input_tokens bigint not null check (cache_creation_input_tokens >= 0),
  cache_read_input_tokens     bigint not null check (cache_read_input_tokens >= 0),
  nano_usd       bigint not null check (nano_usd >= 0),
  estimated_input_tokens  bigint not null,
  estimated_output_tokens bigint not null,
  estimated_cache_creation_input_tokens bigint not null,
  estimated_cache_read_input_tokens     bigint not null,
  estimated_nano_usd bigint not null,
  primary key (task_id, step, attempt_number)
);
