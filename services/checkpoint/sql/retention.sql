-- Retention: ended tasks go, then what hangs on them. Rows of ended tasks are locked for a moment; no commit waits for these.

-- name: due_by_age
-- Tasks whose time is over, the oldest end first, locked and judged under their lock: one that was requeued meanwhile is not
-- among them. A task goes only when all of its family ended so long ago; the rest of a family is not locked here, so that has
-- to be judged again under the lock of its budget: see hold_families. What others are at is skipped.
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
-- The same of one tenant, as an operator asks: those that ended before a moment.
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
-- Whoever moves a task holds the budget of its root: those whose budget is held here stay as they are. Others are skipped.
select root_task_id::text from budgets
 where root_task_id = any(%(root_task_ids)b::text[]::uuid[])
 order by root_task_id
   for no key update skip locked;

-- name: hold_family
-- The same of one, waiting for whoever holds it.
select from budgets where root_task_id = %(root_task_id)b::text::uuid for no key update;

-- name: living_families
-- Those of which a task lives. To be asked after their budgets were locked, by a statement that sees what was done before.
select r.root_task_id::text from unnest(%(root_task_ids)b::text[]::uuid[]) as r(root_task_id)
 where exists (select from tasks o where o.root_task_id = r.root_task_id and o.ended_at is null);

-- name: count_ancestors
-- How many of a task's root and parent there are.
select count(*) from tasks where task_id = any(%(task_ids)b::text[]::uuid[]);

-- name: prune
-- From here on the ledger knows these tasks no more. What is left to do about each is written with it. A task that was never
-- granted has no token anywhere, and nothing at the tools, unless it is a fork: that begins with files.
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
-- Pruned tasks of which entries are left, a few; other replicas take others.
select task_id::text, entries_left from prunings
 where cleared_at is null
 order by pruned_at limit %(limit)b for no key update skip locked;

-- name: clear_entries
-- From the end, so that what is left is a history from its beginning at every moment.
delete from entries where task_id = %(task_id)b::text::uuid and sequence > %(entries_left)b;

-- name: note_cleared
-- How far it got. With a task's last entry goes what else hangs on it, and with the last task of a family its budget: the
-- tasks' own deletions are durable long before, so the last to look sees that there are none.
with done as materialized (
  update prunings p
     set entries_left = c.entries_left, cleared_at = case when c.entries_left = 0 then clock_timestamp() end
    from unnest(%(task_ids)b::text[]::uuid[], %(lefts)b::bigint[]) as c(task_id, entries_left)
   where p.task_id = c.task_id
  returning p.task_id, p.root_task_id, p.entries_left
), without_refusals as (
  delete from refusals r using done d where r.task_id = d.task_id and d.entries_left = 0
), without_requests as (
  delete from foreign_requests f using done d where f.task_id = d.task_id and d.entries_left = 0
)
delete from budgets b using (select distinct root_task_id from done where entries_left = 0) d
 where b.root_task_id = d.root_task_id
   and not exists (select from tasks t where t.root_task_id = d.root_task_id);

-- name: offer_prunings
-- Pruned tasks that the tools have not forgotten yet, disjoint among coordinators. The longer one waits, the longer it is
-- kept from others: while the tools are away, or something still runs there, it is tried ever more rarely.
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
-- The tools have closed their fences for ever.
update prunings set forgotten_at = clock_timestamp()
 where task_id = any(%(task_ids)b::text[]::uuid[]) and forgotten_at is null;

-- name: find_pruned
-- What is known of a task that is no more.
select ended_at, pruned_at, actor, reason from prunings
 where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b;

-- name: lags
-- How far retention is behind, in seconds: with tasks beyond their time, with entries, and with the tools. null: it is not.
select (select extract(epoch from now() - t.ended_at)::float8 - %(kept_seconds)b::float8 from tasks t
         where t.ended_at < now() - make_interval(secs => %(kept_seconds)b)
           and not t.labels @> '{"tenure.retention": "keep"}'::jsonb
         order by t.ended_at limit 1),
       (select extract(epoch from now() - p.pruned_at)::float8 from prunings p
         where p.cleared_at is null order by p.pruned_at limit 1),
       (select extract(epoch from now() - p.pruned_at)::float8 from prunings p
         where p.forgotten_at is null order by p.pruned_at limit 1);
