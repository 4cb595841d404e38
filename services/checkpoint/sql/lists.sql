-- Pages of tasks: their ids and positions, each list by its own index. `tasks_by_id` in queries.sql reads the tasks. The
-- cursor is the position of the last row, so that new tasks do not shift pages.

-- part: filter
-- What every list selects by.
(cardinality(%(states)b::text[]) = 0 or t.state = any(%(states)b::text[]))
   and (%(queue)b::text = '' or t.queue = %(queue)b::text)
   and (%(root_task_id)b::text = '' or t.root_task_id = nullif(%(root_task_id)b::text, '')::uuid)
   and t.labels @> %(labels)b::text::jsonb

-- part: source_filter
-- Of lists by another index than that of a source.
(%(source_kind)b::text = '' or t.source_kind = %(source_kind)b::text)
   and (%(source_id)b::text = '' or t.source_id = %(source_id)b::text)
   and (%(source_run_id)b::text = '' or t.source_run_id = %(source_run_id)b::text)

-- part: output_filter
-- Of lists by another index than that of outputs.
has_output(t.task_id, %(output_kind)b::text, %(output_from)b::text, %(output_until)b::text)

-- part: page
-- A page, newest first. Ordered by time and UUID, as the index is, and not by the texts.
   and (t.created_at, t.task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
   and {filter}
 order by t.created_at desc, t.task_id desc
 limit %(page_size)b

-- name: list_tasks
-- All tasks.
select t.task_id::text, t.created_at::text from tasks t
 where t.tenant = %(tenant)b
   {page};

-- name: list_source_kind
-- Of one kind of source.
select t.task_id::text, t.created_at::text from tasks t
 where t.tenant = %(tenant)b and t.source_kind = %(source_kind)b::text and t.source_kind <> ''
   {page};

-- name: list_source
-- Of one source.
select t.task_id::text, t.created_at::text from tasks t
 where t.tenant = %(tenant)b and t.source_kind = %(source_kind)b::text and t.source_id = %(source_id)b::text
   and t.source_id <> ''
   {page};

-- name: list_source_run
-- Of one run of a source: one row at most, by the unique index.
select t.task_id::text, t.created_at::text from tasks t
 where t.tenant = %(tenant)b and t.source_kind = %(source_kind)b::text and t.source_id = %(source_id)b::text
   and t.source_run_id = %(source_run_id)b::text and t.source_run_id <> ''
   and (t.created_at, t.task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
   and {filter}
 limit %(page_size)b;

-- name: list_forks
-- One task's forks.
select t.task_id::text, t.created_at::text from tasks t
 where t.tenant = %(tenant)b and t.forked_from_task_id = %(forked_from_task_id)b::text::uuid
   and {source_filter} and {output_filter}
   {page};

-- name: list_waits
-- Waiting tasks, by the deadline of the wait. Ordered by time and UUID, as the index is, and not by the texts.
select t.task_id::text, coalesce(t.wait_deadline_at, 'infinity')::text from tasks t
 where t.tenant = %(tenant)b and t.waiting_since is not null
   and (coalesce(t.wait_deadline_at, 'infinity'), t.task_id) >
       (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
   and (%(forked_from_task_id)b::text = '' or t.forked_from_task_id = nullif(%(forked_from_task_id)b::text, '')::uuid)
   and {filter} and {source_filter} and {output_filter}
 order by coalesce(t.wait_deadline_at, 'infinity'), t.task_id
 limit %(page_size)b;

-- name: list_output_kind
-- Tasks with an output of one kind, newest first.
select t.task_id::text, t.created_at::text
  from (select distinct task_created_at, task_id from task_outputs
         where tenant = %(tenant)b and kind = %(output_kind)b::text and kind <> ''
           and (task_created_at, task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
         order by task_created_at desc, task_id desc) o
  join tasks t using (task_id)
 where {output_filter} and {filter} and {source_filter}
 order by o.task_created_at desc, o.task_id desc
 limit %(page_size)b;

-- name: list_output_uri
-- The same by the beginning of a URI. The index has no order of time: all matches are read and sorted.
select t.task_id::text, t.created_at::text
  from (select distinct task_created_at, task_id from task_outputs
         where tenant = %(tenant)b and kind <> ''
           and uri >= %(output_from)b::text and uri < %(output_until)b::text
           and (task_created_at, task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)) o
  join tasks t using (task_id)
 where {filter} and {source_filter}
 order by o.task_created_at desc, o.task_id desc
 limit %(page_size)b;
