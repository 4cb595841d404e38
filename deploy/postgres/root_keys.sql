-- Puts the root of a task's tree into every key of the ledger's tables, as Citus needs it (docs/citus.md). Plain SQL, run
-- once by psql as the owner of the schema: after `tenure serve checkpoint migrate`, before the first task.
begin;
set local search_path = ledger, pg_temp;

do $$ begin
  if exists (select from tasks) then
    raise exception 'the ledger has tasks, whose entries may have no root: use a new ledger (docs/citus.md)';
  end if;
end $$;

-- Rows of a task.
alter table tasks drop constraint tasks_pkey, add primary key (root_task_id, task_id);
alter table entries alter root_task_id set not null, drop constraint entries_pkey,
  add primary key (root_task_id, task_id, sequence);
alter table token_usage drop constraint token_usage_pkey, add primary key (root_task_id, task_id, step, attempt_number);
alter table usage_reports alter root_task_id set not null, drop constraint usage_reports_pkey,
  add primary key (root_task_id, task_id, step, attempt_number);
alter table foreign_requests alter root_task_id set not null, drop constraint foreign_requests_pkey,
  add primary key (root_task_id, task_id, request_id);
alter table refusals alter root_task_id set not null, drop constraint refusals_pkey,
  add primary key (root_task_id, refusal_id);
alter table task_outputs alter root_task_id set not null, drop constraint task_outputs_pkey,
  add primary key (root_task_id, task_id, call_id);
alter table prunings drop constraint prunings_pkey, add primary key (root_task_id, task_id);
alter table family_news alter root_task_id set not null, drop constraint family_news_pkey,
  add primary key (root_task_id, position);
alter table raised_budgets drop constraint raised_budgets_pkey, add primary key (root_task_id, position);

-- Statements that know the task but not its root look here: on Citus on every node (docs/citus.md lists them).
create index tasks_by_id on tasks (task_id);
create index entries_by_task on entries (task_id, sequence);
create index token_usage_by_task on token_usage (task_id, step, attempt_number);
create index usage_reports_by_task on usage_reports (task_id);
create index foreign_requests_by_task on foreign_requests (task_id, request_id);
create index task_outputs_by_task on task_outputs (task_id);
create index prunings_by_task on prunings (task_id);
create index family_news_by_position on family_news (position);
create index raised_budgets_by_position on raised_budgets (position);

-- The sub-agents of a call are in the tree of their parent.
drop index tasks_sub_agents;
create unique index tasks_sub_agents on tasks (root_task_id, parent_task_id, spawn_call_id, spawn_index)
  where parent_task_id is not null;
create index tasks_of_parents on tasks (parent_task_id, spawn_call_id, spawn_index) where parent_task_id is not null;

-- Triggers run on the node of their row and may read rows there: those of the same root. Each lookup names the root.
do $$
declare
  one record;
  text text;
begin
  for one in
    select * from (values
      ('refuse_unknown_move', 'where task_id = new.task_id and kind',
       'where root_task_id = new.root_task_id and task_id = new.task_id and kind'),
      ('refuse_change', 'where p.task_id = old.task_id',
       'where p.root_task_id = old.root_task_id and p.task_id = old.task_id'),
      ('refuse_change_of_a_bill', 'where (r.task_id, r.step',
       'where r.root_task_id = new.root_task_id and (r.task_id, r.step'),
      -- By itself: Citus plans no condition that has a system column of a distributed table beside other terms.
      ('refuse_invalid_task', 'and not exists (select from usage_reports r
                      where r.task_id = new.task_id and age(r.xmin) <= age(pg_current_xact_id()::xid)) then',
       'then
    perform from usage_reports where root_task_id = new.root_task_id and task_id = new.task_id
                                 and age(xmin) <= age(pg_current_xact_id()::xid);
    if found then
      return new;
    end if;'),
      ('refuse_invalid_entries', 'select task_id, min(sequence)', 'select root_task_id, task_id, min(sequence)'),
      ('refuse_invalid_entries', 'from added group by task_id limit 1', 'from added group by root_task_id, task_id limit 1'),
      ('refuse_invalid_entries', 'where e.task_id = a.task_id',
       'where e.root_task_id = a.root_task_id and e.task_id = a.task_id'),
      ('refuse_invalid_entries', 'where e.task_id = one.task_id',
       'where e.root_task_id = one.root_task_id and e.task_id = one.task_id')
    ) as lookups(of_function, lookup, with_root) loop
    text := pg_get_functiondef(one.of_function::regproc);
    if strpos(text, one.lookup) = 0 then
      raise exception '% has no lookup "%" any more: adapt this file to the newest migration', one.of_function, one.lookup;
    end if;
    execute replace(text, one.lookup, one.with_root);
  end loop;
end $$;
commit;
