-- The rules of a row of `tasks`, `budgets` and `token_usage`: one trigger of each table has them all. Postgres
-- parses each CHECK and each WHEN of a trigger again in every statement that writes to its table. It keeps the expressions
-- of a function for the whole session. The rules keep their names, also in the error.

set lock_timeout = '5s';

do $$
declare one record;
begin
  for one in select conrelid::regclass as of_table, conname from pg_constraint
              where contype = 'c' and coninhcount = 0
                and conrelid in ('tasks'::regclass, 'budgets'::regclass, 'token_usage'::regclass) loop
    execute format('alter table %s drop constraint %I', one.of_table, one.conname);
  end loop;
end $$;
drop trigger tasks_only_grow on tasks;
drop trigger tasks_usage_only_grows on tasks;
drop trigger budgets_only_grow on budgets;
drop trigger budgets_note_raised_caps on budgets;
drop trigger entries_follow on entries;

create function refuse_row(of_table text, rule text) returns void language plpgsql as $$
begin
  raise exception 'a row of % breaks the rule %', of_table, rule
    using errcode = 'check_violation', schema = 'ledger', table = of_table, constraint = rule;
end $$;

-- As CHECKs, a rule that comes to null is kept. Of an insert all columns of `old` are null: nothing grows then.
--
-- A fence that goes down lets an old owner write again; a sequence that goes down writes history anew. A claim has one
-- epoch, and so has a grant. Commits count up, and anew for the next claim: the steps' statement sets them back before it moves.
create function refuse_invalid_task() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
declare
  broken text := case
    when new.state not in ('QUEUED', 'RUNNING', 'WAITING_USER', 'WAITING_EXTERNAL', 'RETRY_SCHEDULED',
                           'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'COST_EXCEEDED') then 'tasks_state'
    when new.ending_state not in ('', 'CANCELLED', 'TIMED_OUT', 'FAILED', 'COST_EXCEEDED', 'SUCCEEDED') then 'tasks_ending_state'
    when new.on_lease_lost not in ('RESUME', 'TIME_OUT') then 'tasks_on_lease_lost'
    when new.priority not between 1 and 3 then 'tasks_priority'

    when (new.state = 'RUNNING') <> new.holds then 'running_iff_held'
    when (new.epoch > 0) <> (new.claim_id <> '') or (new.holds and new.epoch <= 0) then 'a_claim_is_whole'
    when not new.holds and new.owner <> '' then 'owned_iff_held'
    when new.granted < new.epoch then 'opened_only_when_granted'
    when not new.holds and new.model_open then 'attempts_only_while_running'
    when (new.state = 'RETRY_SCHEDULED') <> (new.next_retry_at is not null) then 'retry_iff_scheduled'
    when (new.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'COST_EXCEEDED')) <> (new.ended_at is not null)
      then 'ended_iff_terminal'
    when new.ended_at is not null and new.open_calls <> '{}' then 'ended_without_open_calls'
    when (new.ending_state <> '') <> (new.ending_at is not null) then 'an_ending_has_a_time'
    when (new.result_json <> '') <> (new.has_result_schema and new.state = 'SUCCEEDED') then 'success_has_its_json'

    when (new.state in ('WAITING_USER', 'WAITING_EXTERNAL')) <> (new.waiting_since is not null) then 'waiting_iff_since'
    when new.wait <> '' and new.waiting_since is null then 'only_waiting_tasks_have_a_wait'
    when (new.wait <> '') <> (new.wait_deadline_at is not null) then 'a_wait_has_a_deadline'
    when new.wait_correlation <> '' and new.wait = '' then 'a_correlation_is_of_a_wait'
    when new.wait_step_at is not null and new.wait = '' then 'only_a_wait_has_steps'
    when new.operator_wait <> '' and new.ended_at is not null then 'only_living_tasks_will_wait'

    when (new.state = 'QUEUED') <> (new.queued_at is not null) then 'queued_since_iff_queued'
    when new.queued_until is not null and new.state <> 'QUEUED' then 'only_queued_tasks_queue_too_long'
    when new.starts_at is not null and new.state <> 'QUEUED' then 'only_queued_tasks_start_later'

    when (new.parent_task_id is null) <> (new.depth = 0) or (new.depth = 0) <> (new.spawn_call_id = '')
      then 'a_sub_agent_has_a_parent'
    when (new.forked_from_task_id is null) <> (new.forked_from_sequence is null) then 'a_fork_knows_its_point'
    when new.source_run_id <> '' and (new.source_kind = '' or new.source_id = '') then 'source_run_of_a_source'
    when new.exclusive_source = '' then 'tasks_exclusive_source'

    when new.max_steps < 1 or new.attempt < 1 or new.forked_from_sequence < 1 then 'tasks_count_from_one'
    when least(new.epoch, new.granted, new.claim_count, new.deaths, new.timeout_retries, new.depth, new.spawn_index,
               new.sub_agents, new.commit_number, new.sequence, new.step, new.model_input, new.model_output,
               new.model_nano_usd, new.input_tokens, new.output_tokens, new.cache_creation_input_tokens,
               new.cache_read_input_tokens, new.used_nano_usd, new.own_max_tokens, new.own_max_nano_usd) < 0
      then 'tasks_not_negative'

    when new.epoch < old.epoch or (new.epoch = old.epoch) <> (new.claim_id = old.claim_id)
         or new.granted < old.granted or (new.granted = old.granted) <> (new.granted_claim = old.granted_claim)
         or new.sequence < old.sequence or new.step < old.step or new.claim_count < old.claim_count
         or (new.commit_number < old.commit_number and new.commit_number > 0) then 'tasks_only_grow'
  end;
begin
  if broken is not null then
    perform refuse_row('tasks', broken);
  end if;
  -- What a task used goes down only by a report.
  if (new.input_tokens < old.input_tokens or new.output_tokens < old.output_tokens
      or new.cache_creation_input_tokens < old.cache_creation_input_tokens
      or new.cache_read_input_tokens < old.cache_read_input_tokens or new.used_nano_usd < old.used_nano_usd)
     and not exists (select from usage_reports r
                      where r.task_id = new.task_id and age(r.xmin) <= age(pg_current_xact_id()::xid)) then
    perform refuse_row('tasks', 'tasks_usage_only_grows');
  end if;
  return new;
end $$;
-- Its name is the last one: it sees what the other triggers leave.
create trigger valid_tasks before insert or update on tasks for each row execute function refuse_invalid_task();

-- Caps, and what was used beyond them, only grow.
create function refuse_invalid_budget() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
declare
  broken text := case
    when new.max_tokens < 1 then 'budgets_max_tokens'
    when least(new.used_tokens, new.reserved_tokens, new.max_nano_usd, new.used_nano_usd, new.reserved_nano_usd,
               new.unpriced_calls, new.beyond_tokens, new.beyond_nano_usd) < 0 then 'budgets_not_negative'
    when new.used_tokens + new.reserved_tokens > new.max_tokens + new.beyond_tokens then 'tokens_within_the_cap'
    when new.max_nano_usd <> 0 and new.used_nano_usd + new.reserved_nano_usd > new.max_nano_usd + new.beyond_nano_usd
      then 'money_within_the_cap'
    when new.max_tokens < old.max_tokens or new.max_nano_usd < old.max_nano_usd
         or new.beyond_tokens < old.beyond_tokens or new.beyond_nano_usd < old.beyond_nano_usd then 'budgets_only_grow'
  end;
begin
  if broken is not null then
    perform refuse_row('budgets', broken);
  end if;
  if new.max_tokens > old.max_tokens or new.max_nano_usd > old.max_nano_usd then
    insert into raised_budgets (root_task_id) values (new.root_task_id);
  end if;
  return new;
end $$;
create trigger valid_budgets before insert or update on budgets for each row execute function refuse_invalid_budget();

create function refuse_invalid_bill() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if least(new.input_tokens, new.output_tokens, new.cache_creation_input_tokens, new.cache_read_input_tokens, new.nano_usd) < 0
  then
    perform refuse_row('token_usage', 'bills_not_negative');
  end if;
  return new;
end $$;
create trigger valid_bills before insert on token_usage for each row execute function refuse_invalid_bill();

-- Sequences are 1, 2, 3 …: what an entry follows is there. Looked at once for all that a statement adds: of one task by a
-- single key, for which Postgres opens one partition; of several tasks by a join, for which it opens all.
create function refuse_invalid_entries() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
declare one record;
begin
  select task_id, min(sequence) as first, max(sequence) as last, count(*) as number, count(*) over () as tasks into one
    from added group by task_id limit 1;
  if one.tasks > 1 then
    if exists (select from added a where a.sequence > 1 and not exists (
                 select from entries e where e.task_id = a.task_id and e.sequence = a.sequence - 1)) then
      perform refuse_row('entries', 'entries_follow');
    end if;
  elsif one.last - one.first >= one.number then
    perform refuse_row('entries', 'entries_follow');
  elsif one.first > 1 then
    perform from entries e where e.task_id = one.task_id and e.sequence = one.first - 1;
    if not found then
      perform refuse_row('entries', 'entries_follow');
    end if;
  end if;
  return null;
end $$;
create trigger valid_entries after insert on entries referencing new table as added
  for each statement execute function refuse_invalid_entries();

drop function refuse_going_back();
drop function refuse_using_less();
drop function refuse_smaller_cap();
drop function note_raised_cap();
drop function refuse_gaps();
