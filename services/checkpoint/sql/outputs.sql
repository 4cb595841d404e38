-- The outputs of tasks.

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
