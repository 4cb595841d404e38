-- The groups of a task for effect keys. A fork keeps the tree and the run of the task that it was forked from, because its
-- history has the effects of that task. Sub-agents have those of their root.

alter table tasks
  add column effects_tree uuid,                               -- of a fork: the root of the tree of the first of its origins
  add column effects_run  text not null default '';           -- of a fork: the run of the source of that root

create function run_of_source(root tasks) returns text language sql stable return
  case when root.source_run_id <> '' then concat_ws('/', root.source_kind, root.source_id, root.source_run_id)
       else root.effects_run end;
