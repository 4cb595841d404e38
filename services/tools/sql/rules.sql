-- The statements of rules on tool calls. A transaction that accepts calls locks rule_sets by tenant, then fences, then
-- calls, then counters by their key.

-- name: versions
-- The version of each tenant that has rules. Every replica reads it several times a second.
select tenant, version from rule_sets where tenant > '' and rules > 0 order by tenant;

-- name: hold_versions
-- Locks the versions of tenants for a transaction that accepts calls. A change of the rules waits for it, or came before.
select tenant, version from rule_sets where tenant = any(%(tenants)b::text[]) order by tenant for share;

-- name: rules_of
-- The rules of tenants with their versions, in one snapshot. A tenant without rules has one row, with nulls.
select s.tenant, s.version, r.rule, r.version, r.actor, r.updated_at
  from rule_sets s left join tool_rules r using (tenant)
 where s.tenant = any(%(tenants)b::text[]) order by s.tenant, r.name collate "C";

-- name: next_version
-- Begins a change of the rules: the next version, under the lock for which accepting transactions wait.
insert into rule_sets (tenant, version, rules) values (%(tenant)b, 1, 0)
on conflict (tenant) do update set version = rule_sets.version + 1
returning version, rules;

-- name: set_rule
-- Creates a rule, or replaces it.
insert into tool_rules (tenant, name, rule, version, actor)
values (%(tenant)b, %(name)b, %(rule)b, %(version)b, %(actor)b)
on conflict (tenant, name) do update
   set rule = excluded.rule, version = excluded.version, actor = excluded.actor, updated_at = clock_timestamp()
returning updated_at;

-- name: count_rules
-- Ends a change of the rules.
update rule_sets s set rules = (select count(*) from tool_rules r where r.tenant = s.tenant)
 where s.tenant = %(tenant)b returning s.rules;

-- name: delete_rule
-- Deletes a rule.
delete from tool_rules where tenant = %(tenant)b and name = %(name)b returning name;

-- name: delete_counters
-- Deletes what a rule has counted.
delete from rule_counters where tenant = %(tenant)b and rule = %(name)b;

-- name: lock_counters
-- Locks counters in the order of their key, and makes those that do not exist, in the same order: so two transactions
-- never wait for each other.
insert into rule_counters as c (tenant, rule, subject, window_seconds, begins_at, ends_at)
select tenant, rule, subject, window_seconds, to_timestamp(begins_at),
       case when window_seconds > 0 then to_timestamp(begins_at + window_seconds) end
  from unnest(%(tenants)b::text[], %(rules)b::text[], %(subjects)b::bytea[], %(windows)b::float8[],
              %(begins)b::float8[]) as w(tenant, rule, subject, window_seconds, begins_at)
 order by tenant collate "C", rule collate "C", subject, window_seconds, begins_at
on conflict (tenant, rule, subject, window_seconds, begins_at) do update set calls = c.calls
returning c.counter_id, c.tenant, c.rule, c.subject, c.window_seconds, extract(epoch from c.begins_at)::float8, c.calls,
          c.total, c.ended_early_at is not null;

-- name: end_counters
-- Ends the counters of plans. lock_counters has locked them, so the transactions that counted by them have committed.
update rule_counters set ended_early_at = coalesce(ended_early_at, clock_timestamp())
 where counter_id = any(%(counter_ids)b::bigint[]);

-- name: read_counters
-- What the counters of plans have counted, without the calls that never ran.
select c.rule, c.calls - r.calls, c.total - r.total, c.ended_early_at
  from rule_counters c
 cross join lateral (select count(*) as calls, coalesce(sum(k.amount), 0) as total
                       from counted_calls k where k.counter_id = c.counter_id and k.returned) r
 where c.tenant = %(tenant)b and c.rule = any(%(rules)b::text[]);

-- name: take_returned
-- The calls of locked counters that never ran.
delete from counted_calls where counter_id = any(%(counter_ids)b::bigint[]) and returned returning counter_id, amount;

-- name: write_counters
-- Writes counters that lock_counters has locked.
update rule_counters c set calls = w.calls, total = w.total
  from unnest(%(counter_ids)b::bigint[], %(calls)b::bigint[], %(totals)b::numeric[]) as w(counter_id, calls, total)
 where c.counter_id = w.counter_id;

-- name: count_calls
-- Records which calls the counters have counted. A call of a task that an older ledger brought back may be counted twice:
-- it runs twice.
insert into counted_calls (task_id, call_id, counter_id, amount)
select * from unnest(%(task_ids)b::uuid[], %(call_ids)b::text[], %(counter_ids)b::bigint[], %(amounts)b::numeric[])
on conflict (task_id, call_id, counter_id) do update set amount = excluded.amount, returned = false;

-- name: lock_counters_of_task
-- Locks the counters to which calls of a task are given back, in the order of lock_counters.
select c.counter_id, c.calls, c.total from rule_counters c
 where c.counter_id in (select counter_id from counted_calls where task_id = %(task_id)b::uuid and returned)
 order by c.tenant collate "C", c.rule collate "C", c.subject, c.window_seconds, c.begins_at for no key update;

-- name: forget_counted_calls
-- Deletes which calls of a task were counted. The counters keep them.
delete from counted_calls where task_id = %(task_id)b::uuid and not returned;

-- name: forget_counters
-- Deletes a bounded number of counters whose time was over a week ago.
delete from rule_counters where counter_id in (
  select counter_id from rule_counters where ends_at < clock_timestamp() - interval '7 days'
   order by ends_at limit %(limit)b::int for update skip locked);

-- name: recorded_calls
-- The tenant's calls of the tools that match a pattern since a time, the oldest first. Arguments that no rule reads,
-- because they are too large, are cut to one byte more than rules read.
select c.task_id, c.call_id, c.tool, substring(c.arguments from 1 for %(most_bytes)b::int + 1), c.accepted_at
  from calls c join fences f using (task_id)
 where c.accepted_at >= %(since)b::timestamptz and f.tenant = %(tenant)b::text
   and c.tool like %(tools)b::text
 order by c.accepted_at, c.task_id, c.call_id limit %(limit)b::int;
