-- Tenants: their quotas, the windows that these look at, and their bills.

-- name: find
-- A tenant as it stands. `tenant` '': the defaults.
select tenant, own, revision, actor, reason, max_running_tasks, max_submits_per_minute, max_tokens_per_hour,
       max_nano_usd_per_day, running_policy, submits_policy, tokens_policy, money_policy, created_at, updated_at,
       extract(epoch from clock_timestamp())::float8
  from tenants where tenant = %(tenant)b;

-- name: lock
-- The same, under its lock: submits of a tenant that has a rate are counted one after another, and so are updates.
select tenant, own, revision, actor, reason, max_running_tasks, max_submits_per_minute, max_tokens_per_hour,
       max_nano_usd_per_day, running_policy, submits_policy, tokens_policy, money_policy, created_at, updated_at,
       extract(epoch from clock_timestamp())::float8
  from tenants where tenant = %(tenant)b
   for no key update;

-- name: note
-- A tenant is heard of for the first time: the defaults hold for it.
insert into tenants (tenant, max_running_tasks, max_submits_per_minute, max_tokens_per_hour, max_nano_usd_per_day,
                     running_policy, submits_policy, tokens_policy, money_policy)
select %(tenant)b, d.max_running_tasks, d.max_submits_per_minute, d.max_tokens_per_hour, d.max_nano_usd_per_day,
       d.running_policy, d.submits_policy, d.tokens_policy, d.money_policy
  from tenants d where d.tenant = ''
on conflict do nothing;

-- name: update
-- Under its lock. The same statement sets the defaults.
update tenants
   set own = %(own)b::text[], revision = revision + 1, actor = %(actor)b, reason = %(reason)b, updated_at = clock_timestamp(),
       max_running_tasks = %(running_tasks)b::bigint, running_policy = %(running_tasks_policy)b,
       max_submits_per_minute = %(submits_per_minute)b::bigint, submits_policy = %(submits_per_minute_policy)b,
       max_tokens_per_hour = %(tokens_per_hour)b::bigint, tokens_policy = %(tokens_per_hour_policy)b,
       max_nano_usd_per_day = %(money_per_day)b::bigint, money_policy = %(money_per_day_policy)b
 where tenant = %(tenant)b;

-- name: follow_defaults
-- What tenants have no quotas of their own for follows the defaults, which have just changed.
update tenants t
   set max_running_tasks = case when 'RUNNING_TASKS' = any(t.own) then t.max_running_tasks else d.max_running_tasks end,
       running_policy = case when 'RUNNING_TASKS' = any(t.own) then t.running_policy else d.running_policy end,
       max_submits_per_minute = case when 'SUBMITS_PER_MINUTE' = any(t.own) then t.max_submits_per_minute
                                     else d.max_submits_per_minute end,
       submits_policy = case when 'SUBMITS_PER_MINUTE' = any(t.own) then t.submits_policy else d.submits_policy end,
       max_tokens_per_hour = case when 'TOKENS_PER_HOUR' = any(t.own) then t.max_tokens_per_hour
                                  else d.max_tokens_per_hour end,
       tokens_policy = case when 'TOKENS_PER_HOUR' = any(t.own) then t.tokens_policy else d.tokens_policy end,
       max_nano_usd_per_day = case when 'MONEY_PER_DAY' = any(t.own) then t.max_nano_usd_per_day
                                   else d.max_nano_usd_per_day end,
       money_policy = case when 'MONEY_PER_DAY' = any(t.own) then t.money_policy else d.money_policy end
  from tenants d
 where d.tenant = '' and t.tenant <> '';

-- name: list
-- A page by name.
select tenant, own, revision, actor, reason, max_running_tasks, max_submits_per_minute, max_tokens_per_hour,
       max_nano_usd_per_day, running_policy, submits_policy, tokens_policy, money_policy, created_at, updated_at,
       extract(epoch from clock_timestamp())::float8
  from tenants where tenant > %(after)b
 order by tenant limit %(limit)b;

-- name: limited
-- Those whose model calls have to be looked after: read every second by every replica, so by an index that has no others.
select tenant, own, revision, actor, reason, max_running_tasks, max_submits_per_minute, max_tokens_per_hour,
       max_nano_usd_per_day, running_policy, submits_policy, tokens_policy, money_policy, created_at, updated_at,
       extract(epoch from clock_timestamp())::float8
  from tenants
 where max_tokens_per_hour is not null or max_nano_usd_per_day is not null;

-- name: running
-- How many tasks of a tenant are held, as far as it matters, by the index of these.
select count(*) from (select from tasks where tenant = %(tenant)b and holds limit %(most)b) held;

-- name: windows
-- What was used, of the windows asked for, since their first buckets.
select w.tenant, w.quota, w.bucket, sum(w.amount)::bigint
  from unnest(%(tenants)b::text[], %(quotas)b::text[], %(firsts)b::bigint[]) as asked(tenant, quota, first)
  join tenant_windows w on w.tenant = asked.tenant and w.quota = asked.quota and w.bucket >= asked.first
 group by 1, 2, 3;

-- name: use
-- Counts what was used. In one order, so that two who write about the same tenants wait for each other and not in a ring. A
-- bucket whose slot has a newer one by now is past all windows.
insert into tenant_windows as w (tenant, quota, slot, shard, bucket, amount)
select u.tenant, u.quota, u.slot, %(shard)b::bigint, u.bucket, u.amount
  from unnest(%(tenants)b::text[], %(quotas)b::text[], %(slots)b::bigint[], %(buckets)b::bigint[], %(amounts)b::bigint[])
         as u(tenant, quota, slot, bucket, amount)
 order by u.tenant, u.quota, u.slot
on conflict (tenant, quota, slot, shard) do update
   set bucket = greatest(w.bucket, excluded.bucket),
       amount = case when w.bucket = excluded.bucket then w.amount + excluded.amount
                     when w.bucket < excluded.bucket then excluded.amount else w.amount end;

-- name: warn
-- A soft cap is met: a row comes back for the first who says so in a window.
insert into tenant_warnings as w (tenant, quota, warned_at)
values (%(tenant)b, %(quota)b, clock_timestamp())
on conflict (tenant, quota) do update set warned_at = excluded.warned_at
 where w.warned_at < excluded.warned_at - make_interval(secs => %(window_seconds)b)
returning warned_at;

-- name: warnings
-- When soft caps were met for the last time.
select tenant, quota, warned_at from tenant_warnings where tenant = any(%(tenants)b::text[]);
