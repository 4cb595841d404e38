-- The queue: which tasks wait in it, which are taken from it, how long it is. tenure.domain.fairness decides between
-- the first two statements which tenants' tasks are next.

-- part: not_stopped
-- No stop of an operator covers the task c. The table of stops is mostly empty.
not exists (select from stops s
             where s.tool = '' and s.tenant in ('', c.tenant) and s.agent in ('', c.agent) and s.queue in ('', c.queue))

-- name: streams
-- The queues and loops with queued tasks, by one step through the index for each. For requests that do not name them.
with recursive stream as (
  (select t.queue, t.loop from tasks t
    where t.state = 'QUEUED' and t.ending_state = '' and t.starts_at is null
    order by t.queue, t.loop limit 1)
  union all
  select n.queue, n.loop
    from stream s
   cross join lateral (
         select t.queue, t.loop from tasks t
          where t.state = 'QUEUED' and t.ending_state = '' and t.starts_at is null
            and (t.queue, t.loop) > (s.queue, s.loop)
          order by t.queue, t.loop limit 1) n
)
select queue, loop from stream
 where (cardinality(%(queues)b::text[]) = 0 or queue = any(%(queues)b::text[]))
   and (cardinality(%(loops)b::text[]) = 0 or loop = any(%(loops)b::text[]))
 limit %(most)b;

-- name: waiting
-- A page of tenants with queued tasks, by one step through the index for each tenant, or for each of the named tenants
-- (`only_tenants`; empty: all), so that the tasks of others cost nothing. Of each: how many tasks it has to offer
-- (counted up to `depth`: the more tenants, the fewer slots each can get), and how many it has running or on the way to
-- a worker. Tasks that a stop covers are not offered. Returns at least one row, which says whether tenants follow after the page.
with recursive stream as (
  select s.queue, s.loop, p.number as priority
    from unnest(%(queues)b::text[], %(loops)b::text[]) as s(queue, loop)
   cross join unnest(%(priorities)b::bigint[]) as p(number)
), step as (
  select s.queue, s.loop, s.priority, t.tenant, 1 as place
    from stream s
   cross join lateral (
         select c.tenant from tasks c
          where c.queue = s.queue and c.loop = s.loop and c.priority = s.priority and c.tenant > %(after)b
            and c.state = 'QUEUED' and c.ending_state = '' and c.starts_at is null
          order by c.tenant limit 1) t
   where cardinality(%(only_tenants)b::text[]) = 0
  union all
  select h.queue, h.loop, h.priority, t.tenant, h.place + 1
    from step h
   cross join lateral (
         select c.tenant from tasks c
          where c.queue = h.queue and c.loop = h.loop and c.priority = h.priority and c.tenant > h.tenant
            and c.state = 'QUEUED' and c.ending_state = '' and c.starts_at is null
          order by c.tenant limit 1) t
   where h.place < %(most_tenants)b
), named as (
  select s.queue, s.loop, s.priority, n.tenant,
         row_number() over (partition by s.queue, s.loop, s.priority order by n.tenant) as place
    from stream s
   cross join (select distinct tenant from unnest(%(only_tenants)b::text[]) as o(tenant) where tenant > %(after)b) n
   cross join lateral (
         select from tasks c
          where c.queue = s.queue and c.loop = s.loop and c.priority = s.priority and c.tenant = n.tenant
            and c.state = 'QUEUED' and c.ending_state = '' and c.starts_at is null
          limit 1) t
), head as (
  select queue, loop, priority, tenant from step
  union all
  select queue, loop, priority, tenant from named where place <= %(most_tenants)b
), open_line as (
  select h.* from head h
   where not exists (select from stops s
                      where s.tool = '' and s.agent = '' and s.tenant in ('', h.tenant) and s.queue in ('', h.queue))
), page as materialized (
  select min(last) as last
    from (select max(h.tenant) as last from head h
           group by h.queue, h.loop, h.priority having count(*) = %(most_tenants)b) full_streams
), present as materialized (
  select distinct h.tenant as name from open_line h cross join page where page.last is null or h.tenant <= page.last
), tenant as materialized (
  -- A single tenant without a limit needs no count: it is next, however many tasks it has running.
  select t.name, t.most,
         case when t.most is null and (select count(*) from present) = 1 then 0
              else (select count(*) from (select from tasks r
                                           where r.holds and r.tenant = t.name
                                           limit greatest(%(most_counted)b, t.most)) r)
                   + (select count(*) from (select from tasks o
                                             where o.state = 'QUEUED' and o.ending_state = '' and o.tenant = t.name
                                               and o.offered_until > now()
                                             limit greatest(%(most_counted)b, t.most)) o) end as running
    from (select p.name, (select l.max_running_tasks from tenants l
                           where l.tenant in (p.name, '') order by l.tenant desc limit 1) as most
            from present p) t
), depth as materialized (
  select greatest(1, least(%(limit)b, 512 / greatest(1, count(*)))) as most from tenant
), found as (
  select h.priority, h.tenant, f.is_new, sum(f.waiting)::bigint as waiting, min(f.oldest) as oldest,
         bool_or(f.waiting = depth.most) as is_more
    from open_line h
   cross join depth
   cross join lateral (
         select n.is_new, count(*) as waiting, min(n.created_at) as oldest
           from (values (false), (true)) as b(is_new)
          cross join lateral (
                select b.is_new, c.created_at from tasks c
                 where c.queue = h.queue and c.loop = h.loop and c.priority = h.priority and c.tenant = h.tenant
                   and (c.claim_count = 0) = b.is_new
                   and c.state = 'QUEUED' and c.ending_state = '' and c.starts_at is null
                   and (c.offered_until is null or c.offered_until < now())
                   and c.deaths < %(deaths_below)b
                   and {not_stopped}
                   and (cardinality(%(worker_ids)b::text[]) = 0 or c.steered_until is null or c.steered_until < now()
                        or exists (select from unnest(%(worker_ids)b::text[]) as w(id)
                                    where w.id = c.steered_to or (c.steered_to = '' and w.id <> c.steered_from)))
                 order by c.created_at
                 limit (select most from depth)) n
          group by n.is_new) f
   group by h.priority, h.tenant, f.is_new
)
select page.last, found.priority, found.tenant, found.is_new, found.waiting, found.is_more, found.oldest,
       tenant.running, tenant.most
  from page left join (found join tenant on tenant.name = found.tenant) on true;

-- name: take
-- Takes a number of tasks from each tenant, the oldest first. Offers are disjoint: rows that another coordinator has
-- locked are skipped, and tasks that were offered recently are left out. Rows are locked while they are searched: with
-- a search first and a lock later, two concurrent requests would find the same rows and one would get nothing. A task
-- whose newest grant is not opened yet is left out for longer: mostly its worker is about to open it, and offers of such
-- tasks, which are the oldest ones, would otherwise hide all others.
with portion as (
  select * from unnest(%(priorities)b::bigint[], %(tenants)b::text[], %(are_new)b::boolean[], %(counts)b::bigint[])
           with ordinality as p(priority, tenant, is_new, most, place)
), chosen as (
  select p.place, t.task_id
    from portion p
   cross join lateral (
         select s.task_id
           from unnest(%(queues)b::text[], %(loops)b::text[]) as q(queue, loop)
          cross join lateral (
                select c.task_id, c.created_at from tasks c
                 where c.queue = q.queue and c.loop = q.loop and c.priority = p.priority and c.tenant = p.tenant
                   and (c.claim_count = 0) = p.is_new
                   and c.state = 'QUEUED' and c.ending_state = '' and c.starts_at is null
                   and (c.offered_until is null or c.offered_until < now())
                   and c.deaths < %(deaths_below)b
                   and {not_stopped}
                   and (cardinality(%(worker_ids)b::text[]) = 0 or c.steered_until is null or c.steered_until < now()
                        or exists (select from unnest(%(worker_ids)b::text[]) as w(id)
                                    where w.id = c.steered_to or (c.steered_to = '' and w.id <> c.steered_from)))
                 order by c.created_at
                 limit p.most
                 for no key update of c skip locked) s
          order by s.created_at
          limit p.most) t
)
update tasks t
   set offered_until = now() + make_interval(secs => case when t.granted > t.epoch then %(unopened_seconds)b::float8
                                                          else %(reserve_seconds)b end)
  from chosen where t.task_id = chosen.task_id
returning chosen.place - 1, t.created_at, t.task_id::text, t.tenant, t.queue, t.priority, t.loop, t.epoch, t.reason, t.tools,
          t.deaths, case when t.steered_until >= now() and t.steered_to = '' then t.steered_from else '' end,
          case when t.steered_until >= now() then t.steered_to else '' end, t.policy, t.agent,
          coalesce((select r.effects_tree from tasks r where r.task_id = t.root_task_id), t.effects_tree, t.root_task_id)::text,
          case when t.source_kind = 'CONVERSATION' then t.source_id else '' end,
          coalesce((select run_of_source(r) from tasks r where r.task_id = t.root_task_id), t.effects_run),
          t.labels, t.approved_calls, t.open_calls,
          array(select p.plan from call_plans p where p.root_task_id = t.root_task_id and p.ends_at > now()
                 order by p.plan_id);

-- name: offer_again
-- Offers tasks at once whose grant was lost before its worker opened them.
update tasks set offered_until = null 
 where task_id = any(%(task_ids)b::text[]::uuid[]) and state = 'QUEUED' and ending_state = '';

-- name: transitions_of_step
-- The transitions of tasks at their current step, among their newest entries.
select o.task_id, e.body
  from unnest(%(task_ids)b::text[], %(afters)b::bigint[], %(steps)b::bigint[]) as o(task_id, after, step)
  join entries e on e.task_id = o.task_id::uuid and e.sequence > o.after and e.kind = %(kind)b and e.step = o.step;

-- name: depth
-- How many tasks are queued and for how long, for all tenants, from the index alone; only a stop of an agent needs the
-- rows of its tasks. Tasks of a tenant that has reached its running quota, and stopped tasks, are counted apart: more
-- workers would not help them.
with recursive line as (
  (select t.queue, t.loop, t.priority, t.tenant from tasks t
    where t.state = 'QUEUED' and t.ending_state = '' and t.starts_at is null
    order by t.queue, t.loop, t.priority, t.tenant limit 1)
  union all
  select n.queue, n.loop, n.priority, n.tenant
    from line l
   cross join lateral (
         select t.queue, t.loop, t.priority, t.tenant from tasks t
          where t.state = 'QUEUED' and t.ending_state = '' and t.starts_at is null
            and (t.queue, t.loop, t.priority, t.tenant) > (l.queue, l.loop, l.priority, l.tenant)
          order by t.queue, t.loop, t.priority, t.tenant limit 1) n
), stopped_line as materialized (
  select l.*,
         exists (select from stops s where s.tool = '' and s.agent = ''
                  and s.tenant in ('', l.tenant) and s.queue in ('', l.queue)) as is_whole,
         array(select s.agent from stops s where s.tool = '' and s.agent <> ''
                and s.tenant in ('', l.tenant) and s.queue in ('', l.queue)) as agents
    from line l
), waiting as materialized (
  select l.queue, l.priority, l.tenant, c.queued,
         case when l.is_whole then c.queued else a.stopped end as stopped,
         case when l.is_whole then null when a.stopped = 0 then c.oldest else a.oldest end as oldest
    from stopped_line l
   cross join lateral (
         select count(*) as queued, min(t.queued_at) as oldest from tasks t
          where t.queue = l.queue and t.loop = l.loop and t.priority = l.priority and t.tenant = l.tenant
            and t.state = 'QUEUED' and t.ending_state = '' and t.starts_at is null) c
   cross join lateral (
         select count(*) filter (where t.agent = any(l.agents)) as stopped,
                min(t.queued_at) filter (where t.agent <> all(l.agents)) as oldest from tasks t
          where not l.is_whole and cardinality(l.agents) > 0
            and t.queue = l.queue and t.loop = l.loop and t.priority = l.priority and t.tenant = l.tenant
            and t.state = 'QUEUED' and t.ending_state = '' and t.starts_at is null) a
), held_back as materialized (
  select w.tenant
    from (select distinct tenant from waiting) w
   cross join lateral (
         select l.max_running_tasks as most from tenants l where l.tenant in (w.tenant, '') order by l.tenant desc limit 1) l
   where (select count(*) from (select from tasks r where r.holds and r.tenant = w.tenant limit l.most) r) >= l.most
)
select w.queue, w.priority, sum(w.queued)::bigint,
       sum(case when h.tenant is null then w.stopped else w.queued end)::bigint, sum(w.stopped)::bigint,
       min(w.oldest) filter (where h.tenant is null),
       extract(epoch from now() - min(w.oldest) filter (where h.tenant is null))::float8
  from waiting w left join held_back h on h.tenant = w.tenant
 group by w.queue, w.priority
 order by 3 desc
 limit %(most)b;

-- name: lock_running
-- Opens of tasks of a tenant with a limit wait here for each other. Tenants without a limit get no row, and no Open
-- waits for them. Takes the locks in the one order for all callers.
with limited as materialized (
  select a.tenant, hashtextextended('running tasks of ' || a.tenant, 0) as key
    from unnest(%(tenants)b::text[]) as a(tenant)
   cross join lateral (select l.max_running_tasks as most from tenants l
                        where l.tenant in (a.tenant, '') order by l.tenant desc limit 1) l
   where l.most is not null
   order by key
)
select tenant, pg_advisory_xact_lock(key) from limited;

-- name: count_running
-- Runs under those locks, so that the counts cover all earlier opens. A task that is opened only to be ended does not
-- count.
select a.tenant, l.most, (select count(*) from (select from tasks r
                                                 where r.holds and r.tenant = a.tenant and r.ending_state = ''
                                                 limit l.most) r)
  from unnest(%(tenants)b::text[]) as a(tenant)
 cross join lateral (select l.max_running_tasks as most from tenants l
                      where l.tenant in (a.tenant, '') order by l.tenant desc limit 1) l
 where l.most is not null;

-- name: due
-- Which sweeps have work, by database time: each condition is one step in the index of its sweep, without a lock. A sweep
-- decides about rows itself, under their locks. The first in an index's order, not `exists`: for `exists` the planner
-- expects that one of the first rows of the table is due, and reads the whole table when none is. Of signals only the
-- newest are looked up, however many are kept and however many tasks wait: what a signal and a wait missed of each
-- other, they missed because they came together.
select name
  from (values
    ('retries', (select min(next_retry_at) from tasks where state = 'RETRY_SCHEDULED') <= now()),
    ('deadlines', (select min(deadline_at) from tasks where ended_at is null and ending_state = ''
                                                        and state <> 'WAITING_USER') <= now()),
    ('queued', (select min(queued_until) from tasks where ending_state = '') <= now()),
    ('starts', (select min(starts_at) from tasks) <= now()),
    ('waits', (select min(wait_deadline_at) from tasks) <= now()),
    ('escalations', (select min(wait_step_at) from tasks) <= now()),
    ('signals', (select s.received_at from signals s
                  cross join lateral (select from tasks t
                                       where t.tenant = s.tenant and t.wait_correlation = s.correlation_id
                                         and t.wait_correlation <> '' limit 1) t
                  where s.received_at > now() - interval '5 seconds' and s.taken_by is null
                  order by s.received_at limit 1) is not null),
    ('schedules', (select min(look_at) from schedules) <= now()),
    ('lines', (select position from due_source_lines order by position limit 1) is not null),
    ('undos', (select min(due_at) from due_undos) <= now()),
    ('families', (select position from family_news order by position limit 1) is not null
                 or (select position from raised_budgets order by position limit 1) is not null
                 or (select position from passed_messages order by position limit 1) is not null),
    ('webhooks', exists (select from webhooks where not paused and leased_until <= now()))
  ) as work(name, is_due)
 where is_due;

-- name: backlog
-- What waits for a person, of all tenants, and the number of stops. A delivery of a webhook that is paused, or held on purpose, is not overdue.
with hooks as materialized (
  select w.pending, w.dead, w.paused,
         case when not w.paused and w.hold_until <= now()
              then (select extract(epoch from now() - min(d.next_attempt_at)) from webhook_deliveries d
                     where d.webhook_id = w.webhook_id and d.next_attempt_at is not null) end as overdue
    from webhooks w
), doubts as materialized (
  select count(*) as number, extract(epoch from now() - min(t.waiting_since)) as oldest
    from tasks t where t.state = 'WAITING_USER' and t.reason = 'TOOL_IN_DOUBT'
)
select coalesce(sum(h.pending), 0)::bigint, max(h.overdue)::float8, coalesce(sum(h.dead), 0)::bigint,
       count(*) filter (where h.paused), (select number from doubts), (select oldest from doubts)::float8,
       (select count(*) from stops)
  from hooks h;

-- name: stops
-- The epoch of the stops, with each stop in force; one row without a stop when there is none.
select e.epoch, s.tenant, s.agent, s.queue, s.tool, s.reason, s.actor, s.stopped_at, s.epoch, s.by_quota
  from stop_epoch e left join stops s on true order by s.epoch;

-- name: next_stop_epoch
-- Raises the epoch of the stops, also above one that a reader had seen before an older ledger was restored. The lock of
-- the row puts the changes of stops in a line.
update stop_epoch set epoch = greatest(epoch, %(seen)b::bigint) + 1 returning epoch;

-- name: begin_stop
-- Begins a stop, or gives the present one of the same selectors the next epoch. A stop by a quota takes
-- the reason and the author, too.
insert into stops as s (tenant, agent, queue, tool, reason, actor, epoch, by_quota)
values (%(tenant)b, %(agent)b, %(queue)b, %(tool)b, %(reason)b, %(actor)b, %(epoch)b::bigint, %(by_quota)b)
on conflict (tenant, agent, queue, tool, by_quota) do update
   set epoch = excluded.epoch,
       reason = case when s.by_quota then excluded.reason else s.reason end,
       actor = case when s.by_quota then excluded.actor else s.actor end
returning s.tenant, s.agent, s.queue, s.tool, s.reason, s.actor, s.stopped_at, s.epoch, s.by_quota;

-- name: end_stop
-- Ends the stop of these selectors.
delete from stops
 where tenant = %(tenant)b and agent = %(agent)b and queue = %(queue)b and tool = %(tool)b and by_quota = %(by_quota)b
returning tenant, agent, queue, tool, reason, actor, stopped_at, epoch, by_quota;

-- name: adopt_stop
-- Takes a stop that a reader still keeps to, and that the restored ledger does not have.
insert into stops (tenant, agent, queue, tool, reason, actor, stopped_at, epoch, by_quota)
values (%(tenant)b, %(agent)b, %(queue)b, %(tool)b, %(reason)b, %(actor)b, %(stopped_at)b::timestamptz, %(epoch)b::bigint,
        %(by_quota)b)
on conflict do nothing;

-- name: note_stop_reader
-- Records the epoch that a process keeps to; of an unchanged one only now and then that it is there.
insert into stop_readers as r (reader, epoch) values (%(reader)b, %(epoch)b::bigint)
on conflict (reader) do update set epoch = excluded.epoch, seen_at = clock_timestamp()
 where r.epoch <> excluded.epoch or r.seen_at < clock_timestamp() - interval '5 seconds';

-- name: late_stop_readers
-- The processes seen lately that keep to an older epoch. The others are forgotten.
with gone as (
  delete from stop_readers where seen_at < clock_timestamp() - interval '20 seconds'
)
select reader from stop_readers r cross join stop_epoch e
 where r.epoch < e.epoch and r.seen_at >= clock_timestamp() - interval '20 seconds' order by reader limit 100;

-- name: stopped_tasks
-- The tasks that a stop covers and whose calls may be in flight: those with a worker, and those between two workers, whose
-- calls go on. Each branch has the condition of an index (tasks_running, tasks_queue, tasks_due_retries, tasks_endings).
with busy as (
  select t.* from tasks t where t.holds
  union all
  select t.* from tasks t where t.state = 'QUEUED' and t.ending_state = '' and t.starts_at is null and not (t.claim_count = 0)
  union all
  select t.* from tasks t where t.state = 'RETRY_SCHEDULED' and t.ending_state = ''
  union all
  select t.* from tasks t where t.ended_at is null and t.ending_state <> '' and not t.holds
)
select t.task_id::text, t.tenant, t.model_open from busy t
 where (t.holds or t.open_calls <> '{}' or t.model_open)
   and %(tenant)b in ('', t.tenant) and %(agent)b in ('', t.agent) and %(queue)b in ('', t.queue)
 order by t.task_id limit %(most)b;
