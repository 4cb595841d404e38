-- Lines of sources: tasks that wait until fewer than Source.at_most others of their source are live.

-- Of a task with Source.at_most, `exclusive_source` is set from its admission to its end; until then it waits in line. The
-- second task that is live at once has "2/<kind>/<source_id>" there, so the unique index decides about each of them.
alter table tasks
  add column source_at_most  int not null default 0,          -- 0: the task does not wait in line
  add column debounced_since timestamptz;                     -- of a task with a debounce: the first submit of its burst

-- Who waits in the line of a source (''), and which of its tasks are live.
create index tasks_in_line on tasks (tenant, source_kind, source_id, coalesce(exclusive_source, ''), created_at, task_id)
  where source_at_most > 0 and ended_at is null;

create function source_slot(kind text, id text, number int) returns text language sql immutable as $$
  select case when number = 1 then '' else number || '/' end || kind || '/' || id
$$;

-- The lines that may admit a task: one entered them, or a live task of the source ended. The transaction that does either
-- writes the row, and the sweep that looks at the line deletes it. So no transaction locks two tasks of a source.
create table due_source_lines (
  position    bigint generated always as identity primary key,
  tenant      text not null,
  source_kind text not null,
  source_id   text not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
