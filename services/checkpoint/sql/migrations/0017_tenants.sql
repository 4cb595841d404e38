-- Tenants: what each may use, and what it has used lately. The row of '', which is nobody's name, has the installation's
-- defaults as the replica had them that started last.
create table tenants (
  tenant                 text primary key,
  own                    text[] not null default '{}',        -- the kinds of quotas that were set for it; of others the defaults hold
  revision               bigint not null default 0 check (revision >= 0),
  actor                  text not null default '',
  reason                 text not null default '',

  -- What holds: its own, or the installation's default; null: no limit.
  max_running_tasks      bigint check (max_running_tasks > 0),
  max_submits_per_minute bigint check (max_submits_per_minute > 0),
  max_tokens_per_hour    bigint check (max_tokens_per_hour > 0),
  max_nano_usd_per_day   bigint check (max_nano_usd_per_day > 0),
  running_policy         text not null default 'DELAY',
  submits_policy         text not null default 'REFUSE',
  tokens_policy          text not null default 'DELAY',
  money_policy           text not null default 'REFUSE',

  created_at             timestamptz not null default now(),
  updated_at             timestamptz,
  constraint tenants_own check (
    own <@ array['RUNNING_TASKS', 'SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY']),
  constraint tenants_policies check (
    array[running_policy, submits_policy, tokens_policy, money_policy] <@ array['REFUSE', 'DELAY'])
);
-- Those whose model calls a replica has to look after.
create index tenants_limited on tenants (tenant) where max_tokens_per_hour is not null or max_nano_usd_per_day is not null;

insert into tenants (tenant) values ('');
insert into tenants (tenant) select distinct tenant from tasks;

-- How much of a sliding window was used, in the buckets that a ring has room for: a bucket that comes again begins anew. What
-- calls used is written by the transaction that settles them, of all tenants: a limit that is set counts what was before. Shards
-- keep the writers of one tenant off each other's rows.
create table tenant_windows (
  tenant text not null,
  quota  text not null constraint tenant_windows_quota check (quota in ('SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY')),
  slot   int not null,
  shard  int not null,
  bucket bigint not null,
  amount bigint not null check (amount >= 0),
  primary key (tenant, quota, slot, shard)
) with (fillfactor = 50);

-- When a soft cap was met for the last time: once a window it is told.
create table tenant_warnings (
  tenant    text not null,
  quota     text not null constraint tenant_warnings_quota check (
              quota in ('RUNNING_TASKS', 'SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY')),
  warned_at timestamptz not null,
  primary key (tenant, quota)
) with (fillfactor = 50);

-- The bill of a tenant over time.
create index token_usage_tenant on token_usage (tenant, settled_at);
