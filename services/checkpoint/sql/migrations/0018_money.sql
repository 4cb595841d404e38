-- Money: caps, use and reservations beside those in tokens, in nano US dollars; a cap of 0 is none. What stood before has
-- cost nothing here: its prices were not known.

alter table budgets
  add column max_nano_usd      bigint not null default 0 check (max_nano_usd >= 0),
  add column used_nano_usd     bigint not null default 0 check (used_nano_usd >= 0),
  add column reserved_nano_usd bigint not null default 0 check (reserved_nano_usd >= 0),
  add column unpriced_calls    bigint not null default 0 check (unpriced_calls >= 0), -- settled, and not in used_nano_usd
  -- The caps that somebody was warned of last: raised, they are others.
  add column warned_tokens     bigint not null default 0,
  add column warned_nano_usd   bigint not null default 0;

alter table tasks
  add column used_nano_usd     bigint not null default 0 check (used_nano_usd >= 0),
  add column model_nano_usd    bigint not null default 0 check (model_nano_usd >= 0), -- set aside for the open attempt
  add column model_prices      bytea not null default '',                             -- ModelPrices of the contract; '': unknown
  -- What a task may use of its root's budget by itself; 0: all of it. A root has none: its caps are its budget's.
  add column own_max_tokens    bigint not null default 0 check (own_max_tokens >= 0),
  add column own_max_nano_usd  bigint not null default 0 check (own_max_nano_usd >= 0);

alter table token_usage
  add column nano_usd bigint not null default 0 check (nano_usd >= 0),
  add column unpriced boolean not null default true;

create trigger tasks_cost_only_grows before update of used_nano_usd on tasks for each row
  when (new.used_nano_usd < old.used_nano_usd) execute function refuse_going_back();
