-- Lines of sources: 0018_source_lines.sql says which rows are in line. The row of a task whose start time or debounce is
-- to come has that time in `starts_at`; afterwards, until it is admitted, 'infinity'.

-- part: of_line
-- The live tasks of the line l; of them, those that it has not admitted wait.
tasks t where t.tenant = l.tenant and t.source_kind = l.kind and t.source_id = l.id
          and t.source_at_most > 0 and t.ended_at is null

-- name: lock
-- Lets one transaction at a time admit tasks of a line, or replace them. Takes the locks in the one order for all callers.
select pg_advisory_xact_lock(key)
  from (select distinct hashtextextended(concat_ws('/', 'line', tenant, kind, id), 0) as key
          from unnest(%(tenants)b::text[], %(kinds)b::text[], %(ids)b::text[]) as l(tenant, kind, id)
         order by key) locks;

-- name: look
-- How many wait in a line, up to a limit; and the burst of submits that a new one with a debounce belongs to: its first
-- submit, its time to start, and its tasks.
select count(w.task_id), coalesce(min(w.since), now()),
       least(now() + l.debounce, coalesce(min(w.since), now()) + 10 * l.debounce),
       coalesce(array_agg(w.task_id) filter (where w.since is not null), '{}')
  from (values (%(tenant)b::text, %(kind)b::text, %(id)b::text, make_interval(secs => %(debounce_seconds)b::float8)))
         as l(tenant, kind, id, debounce)
  left join lateral (
       select t.task_id::text, case when t.claim_count = 0 and t.state = 'QUEUED' then t.debounced_since end as since
         from {of_line} and coalesce(t.exclusive_source, '') = ''
        order by t.created_at limit %(most)b) w on true
 group by l.debounce;

-- name: note
-- These tasks entered the line of their source, or were live for it and have ended.
insert into due_source_lines (tenant, source_kind, source_id)
select distinct tenant, source_kind, source_id from tasks where task_id = any(%(task_ids)b::text[]::uuid[]);

-- name: note_all
-- All lines in which tasks wait. A replica of a version without lines ends a task and writes no row.
insert into due_source_lines (tenant, source_kind, source_id)
select distinct t.tenant, t.source_kind, t.source_id from tasks t
 where coalesce(t.exclusive_source, '') = '' and t.source_at_most > 0 and t.ended_at is null;

-- name: take
-- Some of the lines that may admit a task, or those at these positions. Skips rows that another replica has locked.
delete from due_source_lines
 where position in (select position from due_source_lines
                     where cardinality(%(positions)b::bigint[]) = 0 or position = any(%(positions)b::bigint[])
                     order by position limit %(limit)b for update skip locked)
returning tenant, source_kind, source_id;

-- name: due
-- The positions of the oldest rows.
select position from due_source_lines order by position limit %(limit)b;

-- name: admit
-- Admits the first tasks of lines, in the order of their submits: none beside more live tasks than it allows, and none
-- before one that has to wait. Runs under the locks of the lines. A task gets the lowest free slot of its source; an
-- exclusive task that never waits has the first one. From now on the task waits for a worker.
with line as materialized (
  select l.*, array(select t.exclusive_source from {of_line} and coalesce(t.exclusive_source, '') > '')
              || array(select t.exclusive_source from tasks t
                        where t.tenant = l.tenant and t.exclusive_source = source_slot(l.kind, l.id, 1)
                          and t.source_at_most = 0 and t.ended_at is null) as live
    from unnest(%(tenants)b::text[], %(kinds)b::text[], %(ids)b::text[]) as l(tenant, kind, id)
), next as materialized (
  select l.*, w.*
    from line l
   cross join lateral (
         select f.task_id, row_number() over behind as number, min(f.source_at_most) over behind as at_most
           from (select t.task_id, t.created_at, t.source_at_most
                   from {of_line} and coalesce(t.exclusive_source, '') = ''
                    and t.state = 'QUEUED' and t.ending_state = '' and t.starts_at = 'infinity'
                  order by t.created_at, t.task_id limit %(most)b) f
         window behind as (order by f.created_at, f.task_id)) w
   where cardinality(l.live) + w.number <= w.at_most
), free as materialized (
  select l.tenant, l.kind, l.id, s.slot, row_number() over (partition by l.tenant, l.kind, l.id order by g.number) as number
    from line l
   cross join generate_series(1, %(most)b::int) as g(number)
   cross join lateral (select source_slot(l.kind, l.id, g.number) as slot) s
   where s.slot <> all(l.live)
)
update tasks t
   set exclusive_source = f.slot, starts_at = null, queued_at = now()
  from next n join free f using (tenant, kind, id, number)
 where t.task_id = n.task_id
returning t.task_id::text;
