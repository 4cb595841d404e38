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
-- A tenant is heard of for the first time: the defaults hold for it, also those that are just being changed.
insert into tenants (tenant, max_running_tasks, max_submits_per_minute, max_tokens_per_hour, max_nano_usd_per_day,
                     running_policy, submits_policy, tokens_policy, money_policy)
select %(tenant)b, d.max_running_tasks, d.max_submits_per_minute, d.max_tokens_per_hour, d.max_nano_usd_per_day,
       d.running_policy, d.submits_policy, d.tokens_policy, d.money_policy
  from tenants d where d.tenant = ''
   for share of d
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
select tenant from tenants where max_tokens_per_hour is not null or max_nano_usd_per_day is not null;

-- name: find_some
-- Several tenants as they stand.
select tenant, own, revision, actor, reason, max_running_tasks, max_submits_per_minute, max_tokens_per_hour,
       max_nano_usd_per_day, running_policy, submits_policy, tokens_policy, money_policy, created_at, updated_at,
       extract(epoch from clock_timestamp())::float8
  from tenants where tenant = any(%(tenants)b::text[]);

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

-- name: wake
-- Tasks of a tenant that wait at a cap look again now: it is another one. Tasks of a rate keep their place in it, as long as
-- there is one. A bounded number of each, by the index of those that have not ended.
with retrying as (
  select task_id from tasks
   where tenant = %(tenant)b and state = 'RETRY_SCHEDULED' and ended_at is null and reason = 'TENANT_QUOTA'
   order by created_at, task_id limit %(limit)b for no key update skip locked
), held as (
  select t.task_id from tasks t join tenants n using (tenant)
   where t.tenant = %(tenant)b and t.state = 'QUEUED' and t.ended_at is null and t.reason = 'TENANT_QUOTA'
     and t.starts_at is not null and n.max_submits_per_minute is null
   order by t.created_at, t.task_id limit %(limit)b for no key update of t skip locked
), woken as (
  update tasks set next_retry_at = now() from retrying where tasks.task_id = retrying.task_id
)
update tasks set starts_at = now() from held where tasks.task_id = held.task_id;

-- name: usage
-- Bills of a tenant over time, summed up by what is asked for. Keys are compared byte by byte, as pages are cut by them.
select key, count(*), count(*) filter (where lost), sum(nano_usd)::bigint, count(*) filter (where simulated),
       coalesce(sum(nano_usd) filter (where simulated), 0)::bigint, count(*) filter (where unpriced and not simulated),
       sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cache_creation_input_tokens)::bigint,
       sum(cache_read_input_tokens)::bigint
  from (select u.*, starts_with(provider_request_id, %(simulated_request)b::text)
                    or starts_with(model, %(simulated_model)b::text) as simulated,
               case %(grouping)b::text when 'ROOT' then root_task_id::text when 'MODEL' then model
                         when 'DAY' then to_char(settled_at at time zone 'UTC', 'YYYY-MM-DD') else tenant end
                    collate "C" as key
          from token_usage u
         where tenant = %(tenant)b and settled_at >= %(begin_at)b and settled_at < %(end_at)b) keyed
 where key > %(after)b
 group by key order by key limit %(limit)b;

-- name: usage_of_root
-- The same of one root, whenever it was: found by the root alone, few, and then looked at for whose they are.
with found as materialized (
  select * from token_usage where root_task_id = %(root_task_id)b::text::uuid
)
select key, count(*), count(*) filter (where lost), sum(nano_usd)::bigint, count(*) filter (where simulated),
       coalesce(sum(nano_usd) filter (where simulated), 0)::bigint, count(*) filter (where unpriced and not simulated),
       sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cache_creation_input_tokens)::bigint,
       sum(cache_read_input_tokens)::bigint
  from (select u.*, starts_with(provider_request_id, %(simulated_request)b::text)
                    or starts_with(model, %(simulated_model)b::text) as simulated,
               case %(grouping)b::text when 'ROOT' then root_task_id::text when 'MODEL' then model
                         when 'DAY' then to_char(settled_at at time zone 'UTC', 'YYYY-MM-DD') else tenant end
                    collate "C" as key
          from found u
         where tenant = %(tenant)b) keyed
 where key > %(after)b
 group by key order by key limit %(limit)b;
