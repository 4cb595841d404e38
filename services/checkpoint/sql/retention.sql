-- Retention: prunes ended tasks, then their other rows. Rows of ended tasks are locked for a moment; no commit waits
-- for them.

-- name: due_by_age
-- Tasks whose retention is over, the oldest end first, locked and checked under the lock: a task that was requeued
-- meanwhile is left out. A task is pruned only when all of its tree ended so long ago; the rest of the tree is not
-- locked here, so it is checked again under the lock of its budget: see hold_families. Skips rows that another
-- transaction has locked.
select t.task_id::text, t.root_task_id::text,
       exists (select from tasks o where o.root_task_id = t.root_task_id and o.task_id <> t.task_id) as has_family
  from tasks t
 where t.ended_at < now() - make_interval(secs => %(kept_seconds)b)
   and not t.labels @> '{"tenure.retention": "keep"}'::jsonb
   and not exists (
         select from tasks o
          where o.root_task_id = t.root_task_id and o.task_id <> t.task_id
            and (o.ended_at is null or o.ended_at >= now() - make_interval(secs => %(kept_seconds)b)
                 or o.labels @> '{"tenure.retention": "keep"}'::jsonb))
 order by t.ended_at
 limit %(limit)b
   for update of t skip locked;

-- name: due_before
-- The same for one tenant, for an operator: tasks that ended before a moment.
select t.task_id::text, t.root_task_id::text,
       exists (select from tasks o where o.root_task_id = t.root_task_id and o.task_id <> t.task_id) as has_family
  from tasks t
 where t.tenant = %(tenant)b and t.ended_at < %(ended_before)b::timestamptz
   and not t.labels @> '{"tenure.retention": "keep"}'::jsonb
   and not exists (
         select from tasks o
          where o.root_task_id = t.root_task_id and o.task_id <> t.task_id
            and (o.ended_at is null or o.ended_at >= %(ended_before)b::timestamptz
                 or o.labels @> '{"tenure.retention": "keep"}'::jsonb))
 order by t.ended_at
 limit %(limit)b
   for update of t skip locked;

-- name: lock_one
-- One task, whatever its label.
select t.state, t.root_task_id::text from tasks t
 where t.task_id = %(task_id)b::text::uuid and t.tenant = %(tenant)b
   for update of t;

-- name: hold_families
-- Every transition of a task holds the budget of its root, so tasks whose budget is locked here do not change. Skips
-- budgets that another transaction has locked.
select root_task_id::text from budgets
 where root_task_id = any(%(root_task_ids)b::text[]::uuid[])
 order by root_task_id
   for no key update skip locked;

-- name: hold_family
-- The same for one budget; waits for the transaction that holds it.
select from budgets where root_task_id = %(root_task_id)b::text::uuid for no key update;

-- name: living_families
-- The roots with a live task. Run it after their budgets were locked, as a statement of its own, which sees what was
-- committed before.
select r.root_task_id::text from unnest(%(root_task_ids)b::text[]::uuid[]) as r(root_task_id)
 where exists (select from tasks o where o.root_task_id = r.root_task_id and o.ended_at is null);

-- name: count_ancestors
-- How many of a task's root and parent exist.
select count(*) from tasks where task_id = any(%(task_ids)b::text[]::uuid[]);

-- name: prune
-- Deletes the task rows: from now on the ledger does not know these tasks. The pruning row records what remains to be
-- done. A task that was never granted has no fencing token and nothing at the tool service, unless it is a fork, which
-- begins with files.
with gone as (
  delete from tasks t using unnest(%(task_ids)b::text[]::uuid[]) as d(task_id)
   where t.task_id = d.task_id
  returning t.task_id, t.tenant, t.root_task_id, t.granted, t.granted_claim, t.ended_at, t.sequence, t.forked_from_task_id
)
insert into prunings (task_id, tenant, root_task_id, epoch, claim_id, ended_at, actor, reason, entries_left, forgotten_at)
select task_id, tenant, root_task_id, granted, granted_claim, ended_at, %(actor)b, %(reason)b, sequence,
       case when granted = 0 and forked_from_task_id is null then now() end
  from gone;

-- name: to_clear
-- Some pruned tasks that still have entries; other replicas take others.
select task_id::text, entries_left from prunings
 where cleared_at is null
 order by pruned_at limit %(limit)b for no key update skip locked;

-- name: clear_entries
-- Deletes from the end, so that the remaining entries are at every moment a history from the beginning.
delete from entries where task_id = %(task_id)b::text::uuid and sequence > %(entries_left)b;

-- name: note_cleared
-- Records the progress. With the last entry of a task its other rows go, and with the last task of a tree the budget:
-- the deletions of the task rows are durable long before, so the last transaction sees that no task remains.
with done as materialized (
  update prunings p
     set entries_left = c.entries_left, cleared_at = case when c.entries_left = 0 then clock_timestamp() end
    from unnest(%(task_ids)b::text[]::uuid[], %(lefts)b::bigint[]) as c(task_id, entries_left)
   where p.task_id = c.task_id
  returning p.task_id, p.root_task_id, p.entries_left
), without_refusals as (
  delete from refusals r using done d where r.task_id = d.task_id and d.entries_left = 0
), without_traces as (
  delete from traced_tasks x using done d where x.task_id = d.task_id and d.entries_left = 0
), without_outputs as (
  delete from task_outputs o using done d where o.task_id = d.task_id and d.entries_left = 0
), without_texts as (
  delete from task_texts x using done d where x.task_id = d.task_id and d.entries_left = 0
), without_undone as (
  delete from undone_calls u using done d where u.task_id = d.task_id and d.entries_left = 0
), without_due as (
  delete from due_undos u using done d where u.task_id = d.task_id and d.entries_left = 0
), without_requests as (
  delete from foreign_requests f using done d where f.task_id = d.task_id and d.entries_left = 0
)
delete from budgets b using (select distinct root_task_id from done where entries_left = 0) d
 where b.root_task_id = d.root_task_id
   and not exists (select from tasks t where t.root_task_id = d.root_task_id);

-- name: offer_prunings
-- Pruned tasks that the tool service has not forgotten yet, disjoint among coordinators. The longer a task waits, the
-- longer it is reserved: while the tool service is unreachable, or still runs a call, it is tried ever more rarely.
with locked as (
  select p.task_id from prunings p
   where p.forgotten_at is null and (p.offered_until is null or p.offered_until < now())
   order by p.pruned_at
   limit %(limit)b
   for no key update of p skip locked
)
update prunings p set offered_until = now() + make_interval(secs => least(
         greatest(%(reserve_seconds)b, extract(epoch from now() - p.pruned_at)::float8 / 2), %(most_seconds)b))
  from locked where p.task_id = locked.task_id
returning p.task_id::text, p.tenant, p.epoch, p.claim_id, p.pruned_at;

-- name: note_forgotten
-- The tool service has closed its fences for good.
update prunings set forgotten_at = clock_timestamp()
 where task_id = any(%(task_ids)b::text[]::uuid[]) and forgotten_at is null;

-- name: find_pruned
-- The record of a pruned task.
select ended_at, pruned_at, actor, reason from prunings
 where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b;

-- name: lags
-- How far retention is behind, in seconds: with tasks to prune, with entries, and with the tool service. null: not
-- behind. A task is late from the moment at which all of its tree may be pruned, as in due_by_age.
select (select extract(epoch from now() - (select max(o.ended_at) from tasks o where o.root_task_id = t.root_task_id)
                      )::float8 - %(kept_seconds)b::float8
          from tasks t
         where t.ended_at < now() - make_interval(secs => %(kept_seconds)b)
           and not t.labels @> '{"tenure.retention": "keep"}'::jsonb
           and not exists (
                 select from tasks o
                  where o.root_task_id = t.root_task_id and o.task_id <> t.task_id
                    and (o.ended_at is null or o.ended_at >= now() - make_interval(secs => %(kept_seconds)b)
                         or o.labels @> '{"tenure.retention": "keep"}'::jsonb))
         order by t.ended_at limit 1),
       (select extract(epoch from now() - p.pruned_at)::float8 from prunings p
         where p.cleared_at is null order by p.pruned_at limit 1),
       (select extract(epoch from now() - p.pruned_at)::float8 from prunings p
         where p.forgotten_at is null order by p.pruned_at limit 1);
