-- The source of a task, as columns. '' where the task was submitted before they existed: its source is in its first entry.
alter table tasks
  add column source_kind text not null default '',
  add column source_id text not null default '',
  add column source_run_id text not null default '',
  add constraint source_run_of_a_source check (source_run_id = '' or (source_kind <> '' and source_id <> ''));

-- The runs of schedules are unique already, by the ids of their requests; so no earlier task can be in the way of the index.
-- Runs of other sources were not unique, so earlier tasks have none here, and a repeat of such a run creates a new task.
update tasks t
   set source_kind = 'SCHEDULER', source_id = r.schedule_id::text, source_run_id = r.source_run_id
  from schedule_runs r
 where r.task_id = t.task_id and t.request_id = 'schedule/' || r.schedule_id || '/' || r.source_run_id;

update tasks
   set source_kind = split_part(exclusive_source, '/', 1),
       source_id = substr(exclusive_source, strpos(exclusive_source, '/') + 1)
 where exclusive_source is not null;

-- A run of a source is one task. Forks that keep their source and sub-agents have no run.
create unique index tasks_source_run on tasks (tenant, source_kind, source_id, source_run_id) where source_run_id <> '';
create index tasks_source on tasks (tenant, source_kind, source_id, created_at desc, task_id desc) where source_id <> '';
create index tasks_source_kind on tasks (tenant, source_kind, created_at desc, task_id desc) where source_kind <> '';

create function refuse_new_source() returns trigger language plpgsql as $$
begin
  raise exception 'a task keeps its source' using errcode = 'check_violation';
end $$;
create trigger tasks_keep_their_source before update of source_kind, source_id, source_run_id on tasks for each row
  when ((new.source_kind, new.source_id, new.source_run_id)
        is distinct from (old.source_kind, old.source_id, old.source_run_id))
  execute function refuse_new_source();

-- The outputs of tasks. The intent of a call of record_output adds a row, and its outcome fills the row in: so the number of
-- a task's rows is limited before the call is made. `body` is a TaskOutput; the columns before it are what filters compare.
create table task_outputs (
  task_id         uuid not null,
  call_id         text not null,
  tenant          text not null,
  task_created_at timestamptz not null,
  kind            text collate "C" not null default '',
  uri             text collate "C" not null default '',
  body            bytea not null default '',
  primary key (task_id, call_id),
  constraint output_is_whole check ((kind = '') = (uri = '') and (kind = '') = (body = ''))
);
create index task_outputs_kind on task_outputs (tenant, kind, task_created_at desc, task_id desc) where kind <> '';
create index task_outputs_uri on task_outputs (tenant, uri) where kind <> '';

-- Whether a task has an output like this; '' and '': every task.
create function has_output(of_task uuid, of_kind text, uri_from text, uri_until text) returns boolean
  language sql stable set search_path = ledger, pg_temp as $$
  select (of_kind = '' and uri_until = '') or exists (
           select from task_outputs o
            where o.task_id = of_task and o.kind <> '' and (of_kind = '' or o.kind = of_kind)
              and (uri_until = '' or (o.uri >= uri_from and o.uri < uri_until)))
$$;

create function refuse_other_output() returns trigger language plpgsql as $$
begin
  raise exception 'an output stays that of its call' using errcode = 'check_violation';
end $$;
create trigger outputs_stay_themselves before update on task_outputs for each row
  when ((new.task_id, new.call_id, new.tenant, new.task_created_at)
        is distinct from (old.task_id, old.call_id, old.tenant, old.task_created_at)
        or (old.kind <> '' and (new.kind, new.uri) is distinct from (old.kind, old.uri)))
  execute function refuse_other_output();
