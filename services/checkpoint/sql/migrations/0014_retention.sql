-- Ended tasks may be pruned: their rows and entries go, their bills stay. Of each one row remains, which is also the list of
-- what is still to be done: entries go in bounded batches after the task itself, and the tools are told to forget it.
create table prunings (
  task_id       uuid primary key,
  tenant        text not null,
  root_task_id  uuid not null,
  -- The task's last grant: no token of it was ever signed above that, and none will be. 0: it was never granted.
  epoch         bigint not null check (epoch >= 0),
  claim_id      text not null,
  ended_at      timestamptz not null,
  pruned_at     timestamptz not null default now(),
  actor         text not null,
  reason        text not null,
  entries_left  bigint not null check (entries_left >= 0),    -- those with a higher sequence are gone
  cleared_at    timestamptz,                                  -- since when nothing of it is left in the ledger but its bills
  forgotten_at  timestamptz,                                  -- since when nothing of it is left at the tools but a closed fence
  offered_until timestamptz,                                  -- kept from other coordinators until then
  constraint cleared_iff_nothing_left check ((cleared_at is not null) = (entries_left = 0))
) with (fillfactor = 80);
create index prunings_to_clear on prunings (pruned_at) where cleared_at is null;
create index prunings_to_forget on prunings (pruned_at) where forgotten_at is null;

-- What retention looks for, the oldest end first. Tasks that are labelled to be kept are not in its way.
create index tasks_ended on tasks (ended_at)
  where ended_at is not null and not labels @> '{"tenure.retention": "keep"}'::jsonb;

-- Entries are never changed, and go only after their task was pruned.
create or replace function refuse_change() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if tg_op = 'DELETE' and exists (select from prunings p where p.task_id = old.task_id) then
    return old;
  end if;
  raise exception 'entries are never changed' using errcode = 'check_violation';
end $$;
