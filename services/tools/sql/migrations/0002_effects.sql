-- One row for each effect key: the last call that had it. The accept of a call takes the key under the lock of the row,
-- after the locks of fences and calls.

create table effects (
  -- SHA-256 of tenant, tool, scope and the values of the declared arguments: see tenure/domain/effect_keys.py.
  digest      bytea       not null primary key check (length(digest) = 32),
  tenant      text        not null,
  tool        text        not null,
  scope       text        not null check (scope in ('TASK', 'TREE', 'CONVERSATION', 'SOURCE', 'TENANT')),
  key         jsonb       not null,
  -- The call that has the key. No foreign key: it would lock the fence of another task.
  task_id     uuid        not null,
  call_id     text        not null,
  -- Both are part of the idempotency key: the number of the period, and how often the key was free again in it.
  period      bigint      not null,
  round       int         not null default 0,
  -- An earlier call of this round may have made the effect: no outcome of a later one proves that nothing happened.
  is_unclear  boolean     not null default false,
  begun_at    timestamptz not null,
  -- When the effect is forgotten; null: with the task of the call that has the key.
  ends_at     timestamptz check ((ends_at is not null) = (scope = 'TENANT')),
  -- What is known of the effect once the record of that call is deleted; null: the record says it.
  kept_fact   text        check (kept_fact in ('HAPPENED', 'UNKNOWN', 'NONE'))
) with (fillfactor = 70);

create index effects_of_tasks on effects (task_id);
create index effects_ends on effects (ends_at) where ends_at is not null;
create index effects_of_tools on effects (tenant, tool);
create index effects_keys on effects using gin (key jsonb_path_ops);

-- The calls with each effect key, also those that did nothing because another call had it. The records of other calls have
-- no column for this.
create table effect_calls (
  task_id         uuid  not null,
  call_id         text  not null,
  digest          bytea not null,
  -- What the other side got; '': the call was not run.
  idempotency_key text  not null,
  primary key (task_id, call_id),
  foreign key (task_id, call_id) references calls on delete cascade
);
create index effect_calls_of_keys on effect_calls (digest);
