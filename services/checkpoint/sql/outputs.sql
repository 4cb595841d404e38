-- The outputs of tasks, and lists of tasks by their outputs.

-- name: open_output
-- The row of a call of record_output, unless the task has too many. Runs under the lock of the task row.
insert into task_outputs (task_id, call_id, tenant, task_created_at)
select t.task_id, %(call_id)b::text, t.tenant, t.created_at from tasks t
 where t.task_id = %(task_id)b::text::uuid
   and (select count(*) from task_outputs o where o.task_id = t.task_id) < %(most)b::bigint
on conflict on constraint task_outputs_pkey do update set call_id = excluded.call_id
returning call_id;

-- name: write_outputs
-- Fills in rows of calls. An output keeps its kind and its URI.
update task_outputs o set kind = c.kind, uri = c.uri, body = c.body
  from unnest(%(call_ids)b::text[], %(kinds)b::text[], %(uris)b::text[], %(bodies)b::bytea[])
       as c(call_id, kind, uri, body)
 where o.task_id = %(task_id)b::text::uuid and o.call_id = c.call_id
   and (o.kind = '' or (o.kind = c.kind and o.uri = c.uri));

-- name: list_output_kind
-- A page of ids of tasks with an output of one kind, newest first: like `list_tasks`, by another index.
select t.task_id::text, t.created_at::text
  from (select distinct task_created_at, task_id from task_outputs
         where tenant = %(tenant)b and kind = %(output_kind)b::text and kind <> ''
           and (task_created_at, task_id) < (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
         order by task_created_at desc, task_id desc) o
  join tasks t using (task_id)
 where has_output(t.task_id, %(output_kind)b::text, %(output_from)b::text, %(output_until)b::text)
   and (cardinality(%(states)b::text[]) = 0 or t.state = any(%(states)b::text[]))
   and (%(queue)b::text = '' or t.queue = %(queue)b::text)
   and (%(root_task_id)b::text = '' or t.root_task_id = nullif(%(root_task_id)b::text, '')::uuid)
   and (%(source_kind)b::text = '' or t.source_kind = %(source_kind)b::text)
   and (%(source_id)b::text = '' or t.source_id = %(source_id)b::text)
   and (%(source_run_id)b::text = '' or t.source_run_id = %(source_run_id)b::text)
   and t.labels @> %(labels)b::text::jsonb
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
 where (cardinality(%(states)b::text[]) = 0 or t.state = any(%(states)b::text[]))
   and (%(queue)b::text = '' or t.queue = %(queue)b::text)
   and (%(root_task_id)b::text = '' or t.root_task_id = nullif(%(root_task_id)b::text, '')::uuid)
   and (%(source_kind)b::text = '' or t.source_kind = %(source_kind)b::text)
   and (%(source_id)b::text = '' or t.source_id = %(source_id)b::text)
   and (%(source_run_id)b::text = '' or t.source_run_id = %(source_run_id)b::text)
   and t.labels @> %(labels)b::text::jsonb
 order by o.task_created_at desc, o.task_id desc
 limit %(page_size)b;
