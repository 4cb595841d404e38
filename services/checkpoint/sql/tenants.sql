-- Tenants: their quotas, their usage windows, and their bills.

-- part: read
-- The columns of TenantRow.
select {tenant}, extract(epoch from clock_timestamp())::float8 from tenants t

-- name: find
-- A tenant's row. `tenant` '': the defaults.
{read} where t.tenant = %(tenant)b;

-- name: lock
-- The same, locked: submits of a tenant with a rate quota are counted one after another, and so are updates.
{read} where t.tenant = %(tenant)b
   for no key update;

-- name: note
-- Creates an unknown tenant's row: the defaults apply to it, also those that are being changed at this moment.
insert into tenants (tenant, max_running_tasks, max_submits_per_minute, max_tokens_per_hour, max_nano_usd_per_day,
                     max_emails_per_hour, running_policy, submits_policy, tokens_policy, money_policy)
select %(tenant)b, d.max_running_tasks, d.max_submits_per_minute, d.max_tokens_per_hour, d.max_nano_usd_per_day,
       d.max_emails_per_hour, d.running_policy, d.submits_policy, d.tokens_policy, d.money_policy
  from tenants d where d.tenant = ''
   for share of d
on conflict do nothing;

-- name: update
-- Runs under the row's lock. The same statement sets the defaults.
update tenants
   set own = %(own)b::text[], revision = revision + 1, actor = %(actor)b, reason = %(reason)b, updated_at = clock_timestamp(),
       max_running_tasks = %(running_tasks)b::bigint, running_policy = %(running_tasks_policy)b,
       max_submits_per_minute = %(submits_per_minute)b::bigint, submits_policy = %(submits_per_minute_policy)b,
       max_tokens_per_hour = %(tokens_per_hour)b::bigint, tokens_policy = %(tokens_per_hour_policy)b,
       max_nano_usd_per_day = %(money_per_day)b::bigint, money_policy = %(money_per_day_policy)b,
       max_emails_per_hour = %(emails_per_hour)b::bigint
 where tenant = %(tenant)b;

-- name: follow_defaults
-- The kinds that tenants do not set themselves follow the defaults, which have just changed.
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
       money_policy = case when 'MONEY_PER_DAY' = any(t.own) then t.money_policy else d.money_policy end,
       max_emails_per_hour = case when 'EMAILS_PER_HOUR' = any(t.own) then t.max_emails_per_hour
                                  else d.max_emails_per_hour end
  from tenants d
 where d.tenant = '' and t.tenant <> '';

-- name: list
-- A page by name.
{read} where t.tenant > %(after)b
 order by t.tenant limit %(limit)b;

-- name: limited
-- The tenants with quotas for model calls: read every second by every replica, so by an index that has no others.
select tenant from tenants where max_tokens_per_hour is not null or max_nano_usd_per_day is not null;

-- name: find_some
-- Several tenants' rows.
{read} where t.tenant = any(%(tenants)b::text[]);

-- name: running
-- How many tasks of a tenant are held, up to the quota, by the index of held tasks.
select count(*) from (select from tasks where tenant = %(tenant)b and holds limit %(most)b) held;

-- name: windows
-- The uses of these windows since their first buckets.
select w.tenant, w.quota, w.bucket, sum(w.amount)::bigint
  from unnest(%(tenants)b::text[], %(quotas)b::text[], %(firsts)b::bigint[]) as asked(tenant, quota, first)
  join tenant_windows w on w.tenant = asked.tenant and w.quota = asked.quota and w.bucket >= asked.first
 group by 1, 2, 3;

-- name: use
-- Adds uses. In one order, so that two writers for the same tenants wait for each other without a deadlock. A bucket
-- whose slot has a newer bucket by now is older than all windows.
insert into tenant_windows as w (tenant, quota, slot, shard, bucket, amount)
select u.tenant, u.quota, u.slot, %(shard)b::bigint, u.bucket, u.amount
  from unnest(%(tenants)b::text[], %(quotas)b::text[], %(slots)b::bigint[], %(buckets)b::bigint[], %(amounts)b::bigint[])
         as u(tenant, quota, slot, bucket, amount)
 order by u.tenant, u.quota, u.slot
on conflict (tenant, quota, slot, shard) do update
   set bucket = greatest(w.bucket, excluded.bucket),
       amount = case when w.bucket = excluded.bucket then w.amount + excluded.amount
                     when w.bucket < excluded.bucket then excluded.amount else w.amount end;

-- name: stops
-- The stops that quotas of 0 are, of these tenants.
select tenant, agent, queue, tool, reason, actor, stopped_at, epoch, by_quota
  from stops where by_quota and tenant = any(%(tenants)b::text[]);

-- name: warn
-- Records a soft cap warning: only the first caller in a window gets a row.
insert into tenant_warnings as w (tenant, quota, warned_at)
values (%(tenant)b, %(quota)b, clock_timestamp())
on conflict (tenant, quota) do update set warned_at = excluded.warned_at
 where w.warned_at < excluded.warned_at - make_interval(secs => %(window_seconds)b)
returning warned_at;

-- name: warnings
-- The times of the last soft cap warnings.
select tenant, quota, warned_at from tenant_warnings where tenant = any(%(tenants)b::text[]);

-- name: near
-- The newest soft cap warnings that are not older than each kind's time.
select w.tenant, w.quota
  from unnest(%(quotas)b::text[], %(lasts)b::float8[]) as asked(quota, lasts)
  join tenant_warnings w on w.quota = asked.quota and w.warned_at > clock_timestamp() - make_interval(secs => asked.lasts)
 order by w.warned_at desc limit %(limit)b;

-- name: near_running
-- The tenants whose held tasks are at least this part of their quota of running tasks: one pass over the held tasks.
select t.tenant, h.running, t.max_running_tasks
  from (select tenant, count(*) as running from tasks where holds group by tenant) h
  join tenants t on t.tenant = h.tenant and t.max_running_tasks > 0 and h.running * 100 >= t.max_running_tasks * %(percent)b::bigint
 order by h.running desc limit %(limit)b;

-- name: wake
-- Wakes a tenant's tasks that wait because of a quota that has changed. Tasks of a rate quota keep their position while
-- the tenant has that quota, and none starts before the time that its client asked for. A bounded number of each, by the
-- index of live tasks.
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
update tasks set starts_at = greatest(now(), asked_start_at) from held where tasks.task_id = held.task_id;

-- name: wake_emails
-- Deliveries of e-mail that wait because of a quota that has changed become due. The caller has locked the tenant's row,
-- and then locks the webhooks' rows, in the order of every sender.
with held as materialized (
  select w.webhook_id from webhooks w where w.tenant = %(tenant)b and w.kind = 'EMAIL' order by w.webhook_id
     for no key update
)
update webhook_deliveries d set next_attempt_at = clock_timestamp()
  from held where d.webhook_id = held.webhook_id and d.next_attempt_at > now() and d.hold_reason = 'TENANT_QUOTA';

-- part: sums
-- Of bills, by the requested grouping. Keys are compared byte by byte, because pages are cut by them.
select key, count(*), count(*) filter (where lost), sum(nano_usd)::bigint, count(*) filter (where simulated),
       coalesce(sum(nano_usd) filter (where simulated), 0)::bigint, count(*) filter (where unpriced and not simulated),
       sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cache_creation_input_tokens)::bigint,
       sum(cache_read_input_tokens)::bigint
  from (select u.*, starts_with(provider_request_id, %(simulated_request)b::text)
                    or starts_with(model, %(simulated_model)b::text) as simulated,
               case %(grouping)b::text when 'ROOT' then root_task_id::text when 'MODEL' then model
                         when 'DAY' then to_char(settled_at at time zone 'UTC', 'YYYY-MM-DD') else tenant end
                    collate "C" as key

-- part: page
-- By key, or the dearest ones.
 where key > %(after)b
 group by key
 order by case when %(dearest)b::boolean then sum(nano_usd) end desc nulls last,
          case when %(dearest)b::boolean then sum(input_tokens + output_tokens + cache_creation_input_tokens
                                                  + cache_read_input_tokens) end desc nulls last,
          key
 limit %(limit)b

-- name: usage
-- Sums of a tenant's bills over time.
{sums}
          from token_usage u
         where tenant = %(tenant)b and settled_at >= %(begin_at)b and settled_at < %(end_at)b) keyed
{page};

-- name: usage_of_root
-- The same for one root, over all time: found by the root alone, few, and then checked for the tenant.
with found as materialized (
  select * from token_usage where root_task_id = %(root_task_id)b::text::uuid
)
{sums}
          from found u
         where tenant = %(tenant)b) keyed
{page};
