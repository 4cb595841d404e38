-- What a TaskFilter selects: pages of tasks (their ids and positions, each list by its own index), counts of tasks, and
-- pages of changes. `tasks_by_id` in queries.sql reads the tasks. The cursor of a list is the position of the last row,
-- so that new tasks do not shift pages.

-- part: in_index
-- What the indexes of states have. The columns of a change are those of its task, with the state and the reason after it.
-- The queue is a range, because only a plain condition is checked in the index; of any queue it is that of all texts.
(cardinality(%(states)b::text[]) = 0 or t.state = any(%(states)b::text[]))
   and (cardinality(%(reasons)b::text[]) = 0 or t.reason = any(%(reasons)b::text[]))
   and t.queue collate "C" between %(queue)b::text and %(queue_until)b::text
   and t.created_at >= %(created_since)b::text::timestamptz and t.created_at < %(created_before)b::text::timestamptz

-- part: filter
-- And what an index of its own finds.
{in_index}
   and (cardinality(%(task_ids)b::text[]) = 0 or t.task_id = any(%(task_ids)b::text[]::uuid[]))
   and t.labels @> %(labels)b::text::jsonb

-- part: narrow
-- What only the rows have, unless a list has an index of its own for it. The text and the outputs are in other tables.
-- A task may be younger than now(), the beginning of this statement, whose snapshot is later: its duration is 0, not less.
-- A change that does not fit is passed over for ever.
(%(root_task_id)b::text = '' or t.root_task_id = nullif(%(root_task_id)b::text, '')::uuid)
   and t.task_id between %(first_id)b::text::uuid and %(last_id)b::text::uuid
   and (%(agent)b::text = '' or t.agent = %(agent)b::text)
   and (%(agent_revision)b = 0 or t.agent_revision = %(agent_revision)b)
   and (%(source_kind)b::text = '' or t.source_kind = %(source_kind)b::text)
   and (%(source_id)b::text = '' or t.source_id = %(source_id)b::text)
   and (%(source_run_id)b::text = '' or t.source_run_id = %(source_run_id)b::text)
   and (%(forked_from_task_id)b::text = ''
        or t.forked_from_task_id = nullif(%(forked_from_task_id)b::text, '')::uuid)
   and (%(ended_since)b::text = '' or t.ended_at >= nullif(%(ended_since)b::text, '')::timestamptz)
   and (%(ended_before)b::text = '' or t.ended_at < nullif(%(ended_before)b::text, '')::timestamptz)
   and (%(model)b::text = '' or t.model_name = %(model)b::text)
   and t.used_nano_usd between %(min_nano_usd)b and %(max_nano_usd)b
   and extract(epoch from greatest(coalesce(t.ended_at, now()) - t.created_at, interval '0'))
       between %(min_seconds)b::text::numeric and %(max_seconds)b::text::numeric
   and has_output(t.task_id, %(output_kind)b::text, %(output_from)b::text, %(output_until)b::text)
   and (%(words)b::text = '' or has_words(t.task_id, nullif(%(words)b::text, '')::tsquery))

-- part: read
-- The tasks that a page reads in the order of the index: `most_read` at most, however few of them the filter keeps.
select t.task_id, t.created_at, {narrow} as fits,
       row_number() over (order by t.created_at desc, t.task_id desc) as n from tasks t
 where t.tenant = %(tenant)b

-- part: page
-- A page, newest first. Ordered by time and UUID, as the index is, and not by the texts.
   and (t.created_at, t.task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
   and {filter}
 order by t.created_at desc, t.task_id desc
 limit %(most_read)b

-- part: kept
-- Of those, the tasks that fit, and the last one that may be read, behind which the next page begins.
r.fits or r.n = %(most_read)b
 order by r.created_at desc, r.task_id desc
 limit %(page_size)b

-- part: columns
-- Of a list. The last task that was read ends the page, also where the filter leaves it out.
select r.task_id::text, r.created_at::text, r.fits, r.n = %(most_read)b

-- name: list_tasks
-- All tasks.
{columns} from ({read} {page}) r where {kept};

-- name: list_ids
-- Tasks whose ids are known: the filter names them, or a search found them.
{columns} from ({read} and t.task_id = any(%(any_ids)b::text[]::uuid[]) {page}) r where {kept};

-- name: list_states
-- Tasks in some states, or of one queue. State by state, each in the order of its index, which has the queue behind it.
{columns} from unnest(%(any_states)b::text[]) as s(name) cross join lateral (
       select * from ({read} and t.state = s.name and t.state <> '' {page}) r where {kept}) r
 order by r.created_at desc, r.task_id desc
 limit %(page_size)b;

-- name: list_reasons
-- Tasks with some reasons. The same; the index has the reason behind the order.
{columns} from unnest(%(any_states)b::text[]) as s(name) cross join unnest(%(reasons)b::text[]) as c(reason)
 cross join lateral (
       select * from ({read} and t.state = s.name and t.state <> '' and t.reason = c.reason {page}) r where {kept}) r
 order by r.created_at desc, r.task_id desc
 limit %(page_size)b;

-- name: list_agent
-- Tasks that are pinned to one agent.
{columns} from ({read} and t.agent = %(agent)b::text and t.agent <> '' {page}) r where {kept};

-- name: list_source_kind
-- Of one kind of source.
{columns} from ({read} and t.source_kind = %(source_kind)b::text and t.source_kind <> '' {page}) r where {kept};

-- name: list_source
-- Of one source.
{columns}
  from ({read} and t.source_kind = %(source_kind)b::text and t.source_id = %(source_id)b::text and t.source_id <> ''
        {page}) r
 where {kept};

-- name: list_source_run
-- Of one run of a source: one row at most, by the unique index.
select t.task_id::text, t.created_at::text, true, false from tasks t
 where t.tenant = %(tenant)b and t.source_kind = %(source_kind)b::text and t.source_id = %(source_id)b::text
   and t.source_run_id = %(source_run_id)b::text and t.source_run_id <> ''
   and (t.created_at, t.task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
   and {filter} and {narrow}
 limit %(page_size)b;

-- name: list_forks
-- One task's forks.
{columns} from ({read} and t.forked_from_task_id = %(forked_from_task_id)b::text::uuid {page}) r where {kept};

-- name: list_tree
-- The tasks of one tree. The index has no order of time: all are read and sorted.
{columns} from ({read} and t.root_task_id = %(root_task_id)b::text::uuid {page}) r where {kept};

-- name: list_prefix
-- Tasks whose ids begin alike. Ids begin with a time, and are of all tenants: so many are read, and not more.
{columns} from (
       select t.task_id, t.created_at,
              t.tenant = %(tenant)b and {filter} and {narrow}
              and (t.created_at, t.task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid) as fits,
              row_number() over (order by t.task_id desc) as n from tasks t
        where t.task_id between %(first_id)b::text::uuid and %(last_id)b::text::uuid
        order by t.task_id desc
        limit %(most_read)b) r where {kept};

-- name: find_words
-- The tasks with some words, of which a search needs all or only to know that they are many.
select x.task_id::text from task_texts x where x.words @@ %(words)b::text::tsquery limit %(limit)b;

-- name: list_waits
-- Waiting tasks, by the deadline of the wait. Ordered by time and UUID, as the index is, and not by the texts.
select r.task_id::text, r.deadline_at::text, r.fits, r.n = %(most_read)b
  from (select t.task_id, coalesce(t.wait_deadline_at, 'infinity') as deadline_at, {filter} and {narrow} as fits,
               row_number() over (order by coalesce(t.wait_deadline_at, 'infinity'), t.task_id) as n from tasks t
         where t.tenant = %(tenant)b and t.waiting_since is not null
           and (coalesce(t.wait_deadline_at, 'infinity'), t.task_id) >
               (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
         order by coalesce(t.wait_deadline_at, 'infinity'), t.task_id
         limit %(most_read)b) r
 where r.fits or r.n = %(most_read)b
 order by r.deadline_at, r.task_id
 limit %(page_size)b;

-- part: outputs
-- Tasks with some outputs, newest first: as many as may be read. A task may have been pruned since.
select o.task_id, o.task_created_at as created_at, o.n, {filter} and {narrow} as fits
  from (select d.*, row_number() over (order by d.task_created_at desc, d.task_id desc) as n
          from (select distinct task_created_at, task_id from task_outputs
                 where tenant = %(tenant)b and kind <> ''
                   and (task_created_at, task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)

-- part: outputs_of_tasks
-- Its end, behind the condition of the index.
                 order by task_created_at desc, task_id desc
                 limit %(most_read)b) d) o
  left join tasks t on t.task_id = o.task_id

-- name: list_output_kind
-- Tasks with an output of one kind.
{columns} from ({outputs} and kind = %(output_kind)b::text {outputs_of_tasks}) r where {kept};

-- name: list_output_uri
-- The same by the beginning of a URI. The index has no order of time: all matches are read there and sorted.
{columns}
  from ({outputs} and uri >= %(output_from)b::text and uri < %(output_until)b::text {outputs_of_tasks}) r
 where {kept};

-- part: group_columns
-- Of groups of tasks: how many fit, the newest of them, and how many were read.
select r.state, r.reason, count(*) filter (where r.fits),
       (array_agg(r.task_id::text order by r.task_id desc) filter (where r.fits))[1:3], count(*)

-- part: of_group
-- The tasks that are read for groups.
select t.state, t.reason, t.task_id, {filter} and {narrow} as fits from tasks t where t.tenant = %(tenant)b

-- name: group_states
-- The numbers of tasks by state and reason: of the newest tasks of each state, as many as may be read in all.
{group_columns}
  from (select of_state.* from unnest(%(any_states)b::text[]) as s(name) cross join lateral (
               {of_group} and t.state = s.name and t.state <> '' and {in_index}
                order by t.created_at desc, t.task_id desc
                limit %(most_read)b) of_state
         limit %(most_read)b) r
 group by r.state, r.reason;

-- name: group_ids
-- The same of tasks whose ids are known.
{group_columns} from ({of_group} and t.task_id = any(%(any_ids)b::text[]::uuid[])) r group by r.state, r.reason;

-- name: count_index
-- The numbers of tasks by state, each up to a limit, in the index alone.
select s.name, c.count, c.count = %(most_counted)b from unnest(%(any_states)b::text[]) as s(name) cross join lateral (
       select count(*) from (
         select from tasks t where t.tenant = %(tenant)b and t.state = s.name and t.state <> '' and {in_index}
          order by t.created_at desc, t.task_id desc
          limit %(most_counted)b) r) c
 where c.count > 0;

-- name: count_read
-- The same with what only the rows have: of the newest tasks of each state, as many as may be read.
select s.name, c.fitting, c.read = %(most_counted)b from unnest(%(any_states)b::text[]) as s(name) cross join lateral (
       select count(*) filter (where r.fits) as fitting, count(*) as read from (
         select {filter} and {narrow} as fits from tasks t
          where t.tenant = %(tenant)b and t.state = s.name and t.state <> '' and {in_index}
          order by t.created_at desc, t.task_id desc
          limit %(most_counted)b) r) c
 where c.fitting > 0 or c.read = %(most_counted)b;

-- name: count_ids
-- The same of tasks whose ids are known, exactly.
select t.state, count(*), false from tasks t
 where t.tenant = %(tenant)b and t.task_id = any(%(any_ids)b::text[]::uuid[]) and {filter} and {narrow}
 group by t.state;

-- name: changes_after
-- A page of a tenant's changes after a cursor, below the oldest transaction that is still running: no earlier row can
-- appear there. One statement, so one snapshot: the pruned position, the rows and the running transactions are
-- consistent. `fits` is the filter's result; the page is limited before the filter, so that few matches do not cause a
-- long search. `held_back`: there are more rows above the oldest running transaction. A change whose task was pruned
-- has the columns of a task without any.
with page as (
  select c.* from changes c
   where c.tenant = %(tenant)b
     and (c.xid, c.position) > (%(xid)b::bigint::text::xid8, %(position)b::bigint)
     and c.xid < pg_snapshot_xmin(pg_current_snapshot())
   order by c.xid, c.position
   limit %(page_size)b
)
select f.feed_id::text, f.pruned_xid::text::bigint, f.pruned_position,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       exists (select from changes c where c.tenant = %(tenant)b
                  and c.xid >= pg_snapshot_xmin(pg_current_snapshot())) as held_back,
       p.xid::text::bigint, p.position, p.task_id::text, p.sequence, p.state, p.reason, p.cancel_requested, p.changed_at,
       {filter} and {narrow} and p.position > f.leftover_position as fits
  from change_feed f
  left join page p on true
  left join lateral (
       select p.task_id, p.state, p.reason, coalesce(c.queue, '') as queue, c.root_task_id, c.forked_from_task_id,
              c.source_kind, c.source_id, c.source_run_id, c.agent, c.agent_revision,
              coalesce(c.created_at, p.changed_at) as created_at, c.ended_at, coalesce(c.labels, '{}') as labels,
              c.model_name, coalesce(c.used_nano_usd, 0) as used_nano_usd
         from (select 1) as one left join lateral (
              select * from tasks k where k.task_id = p.task_id limit 1) c on true  -- never a scan of them all
       ) t on true
 order by p.xid, p.position;
