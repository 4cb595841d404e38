-- A task that waits for budget ends at its cap when no budget is granted.
alter table moves disable trigger moves_stay;
insert into moves (from_state, to_state) values ('WAITING_USER', 'COST_EXCEEDED');
alter table moves enable trigger moves_stay;

create index tasks_wanting_budget on tasks (root_task_id)
  where state = 'WAITING_USER' and reason = 'BUDGET_REQUESTED';

-- The roots whose caps were raised, until the tasks of their trees that wanted budget are queued. A trigger writes it, so
-- that each way to raise a cap continues them.
create table raised_budgets (
  position     bigint generated always as identity primary key,
  root_task_id uuid not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

create function note_raised_cap() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  insert into raised_budgets (root_task_id) values (new.root_task_id);
  return null;
end $$;
create trigger budgets_note_raised_caps after update of max_tokens, max_nano_usd on budgets for each row
  when (new.max_tokens > old.max_tokens or new.max_nano_usd > old.max_nano_usd)
  execute function note_raised_cap();
