-- The database refuses what the code must never do, also for SQL written by hand under a service's role. Steps run
-- thousands of times a second: a step pays for comparisons within its row, and for one look-up of a whole batch.
--
-- One function has all rules of a row of `tasks`, of `budgets` and of `token_usage`. Postgres parses each CHECK and each
-- WHEN of a trigger again in every statement that writes to its table, and keeps the expressions of a function for the
-- whole session. Each rule has a name, which the error shows.
--
-- A function that reads a table sets its own search path, so that no other schema can put a table of that name first.

-- Moves.

create function refuse_change_of_moves() returns trigger language plpgsql as $$
begin
  raise exception 'only a migration can change the table of moves' using errcode = 'check_violation';
end $$;
-- A migration that adds a move disables this trigger around its statement.
create trigger moves_stay before insert or update or delete or truncate on moves
  for each statement execute function refuse_change_of_moves();

-- The transition that records the move is the newest one, and this transaction wrote it: no part of it is older than the
-- transaction. (A savepoint's number is higher.) The entry is written before the row of the task moves.
create function refuse_unknown_move() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if not exists (select from moves where from_state = old.state and to_state = new.state) then
    raise exception 'a % task cannot become %', old.state, new.state using errcode = 'check_violation';
  end if;
  if (select age(xmin) > age(pg_current_xact_id()::xid) from entries
       where task_id = new.task_id and kind = 2 order by sequence desc limit 1) is not false then
    raise exception 'a % task cannot become % without a transition in its entries', old.state, new.state
      using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger moves before update of state on tasks for each row
  when (old.state is distinct from new.state) execute function refuse_unknown_move();

-- Tasks.

create function refuse_row(of_table text, rule text) returns void language plpgsql as $$
begin
  raise exception 'a row of % breaks the rule %', of_table, rule
    using errcode = 'check_violation', schema = 'ledger', table = of_table, constraint = rule;
end $$;

-- As in a CHECK, a rule whose result is null holds. Of an insert all columns of `old` are null: no rule of growth applies.
--
-- A lower fence would let a former owner write again; a lower sequence would rewrite history. A claim has one epoch, and
-- so has a grant. Commits of a claim count up from 1: the statement of steps resets the number before the next claim.
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
    when new.model_open and not new.holds and not (new.model_outlives and new.state = 'QUEUED')
      then 'attempts_only_while_running'
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
  -- Only a report lowers the usage of a task.
  if (new.input_tokens < old.input_tokens or new.output_tokens < old.output_tokens
      or new.cache_creation_input_tokens < old.cache_creation_input_tokens
      or new.cache_read_input_tokens < old.cache_read_input_tokens or new.used_nano_usd < old.used_nano_usd)
     and not exists (select from usage_reports r
                      where r.task_id = new.task_id and age(r.xmin) <= age(pg_current_xact_id()::xid)) then
    perform refuse_row('tasks', 'tasks_usage_only_grows');
  end if;
  return new;
end $$;
-- The name of this trigger is the last one in the alphabet: it sees the row as the other triggers leave it.
create trigger valid_tasks before insert or update on tasks for each row execute function refuse_invalid_task();

create function refuse_beginning() returns trigger language plpgsql as $$
begin
  raise exception 'a new task must be QUEUED, in attempt 1 and without an owner' using errcode = 'check_violation';
end $$;
create trigger tasks_begin_queued before insert on tasks for each row
  when (new.state <> 'QUEUED' or new.attempt <> 1 or new.epoch <> 0 or new.granted <> 0 or new.commit_number <> 0
        or new.open_calls <> '{}' or new.ending_state <> '')
  execute function refuse_beginning();

create function refuse_new_identity() returns trigger language plpgsql as $$
begin
  if (new.task_id, new.tenant, new.request_id, new.request_hash, new.created_at)
     is distinct from (old.task_id, old.tenant, old.request_id, old.request_hash, old.created_at) then
    raise exception 'the identity of a task cannot change' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger tasks_stay_themselves before update of task_id, tenant, request_id, request_hash, created_at on tasks
  for each row execute function refuse_new_identity();

create function refuse_new_source() returns trigger language plpgsql as $$
begin
  raise exception 'the source of a task cannot change' using errcode = 'check_violation';
end $$;
create trigger tasks_keep_their_source before update of source_kind, source_id, source_run_id on tasks for each row
  when ((new.source_kind, new.source_id, new.source_run_id)
        is distinct from (old.source_kind, old.source_id, old.source_run_id))
  execute function refuse_new_source();

create function refuse_new_revision_of_a_task() returns trigger language plpgsql as $$
begin
  if (new.agent, new.agent_revision) is distinct from (old.agent, old.agent_revision) then
    raise exception 'a task keeps the revision of its agent' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger tasks_keep_their_revision before update of agent, agent_revision on tasks
  for each row execute function refuse_new_revision_of_a_task();

-- The granted claim opens the task; after the task was taken away, the same claim cannot open it again.
create function refuse_unknown_claim() returns trigger language plpgsql as $$
begin
  raise exception 'only the claim that was granted last can hold a task, and only once' using errcode = 'check_violation';
end $$;
create trigger tasks_are_held_once before update of holds, epoch, claim_id on tasks for each row
  when ((new.epoch > old.epoch and (new.epoch <> new.granted or new.claim_id <> new.granted_claim))
        or (new.holds and not old.holds and new.epoch = old.epoch))
  execute function refuse_unknown_claim();

-- The end of an attempt stays until the next attempt, and the number of attempts grows only then.
create function refuse_change_of_an_ended_task() returns trigger language plpgsql as $$
begin
  if (new.attempt = old.attempt + 1 and old.ended_at is not null and new.ended_at is null and new.result = '')
     or (new.attempt = old.attempt and (old.ended_at is null
         or (new.state, new.reason, new.message, new.result, new.result_json, new.ended_at)
            is not distinct from (old.state, old.reason, old.message, old.result, old.result_json, old.ended_at))) then
    return new;
  end if;
  raise exception 'a % task of attempt % cannot change before its next attempt', old.state, old.attempt
    using errcode = 'check_violation';
end $$;
create trigger ended_tasks_stay before update of state, reason, message, result, result_json, ended_at, attempt on tasks
  for each row when (old.ended_at is not null or new.attempt <> old.attempt)
  execute function refuse_change_of_an_ended_task();

create function refuse_loss_of_a_living_task() returns trigger language plpgsql as $$
begin
  raise exception 'a % task has not ended', old.state using errcode = 'check_violation';
end $$;
create trigger living_tasks_stay before delete on tasks for each row
  when (old.ended_at is null) execute function refuse_loss_of_a_living_task();

-- Entries.

-- An entry never changes. It can be deleted after its task was pruned.
create function refuse_change() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if tg_op = 'DELETE' and exists (select from prunings p where p.task_id = old.task_id) then
    return old;
  end if;
  raise exception 'entries are never changed' using errcode = 'check_violation';
end $$;
create trigger entries_stay before update or delete on entries for each row execute function refuse_change();

-- Sequences are 1, 2, 3 …: the entry before each one exists. One look-up for all entries of a statement: of one task by a
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

create function refuse_other_output() returns trigger language plpgsql as $$
begin
  raise exception 'the call of an output, and a recorded output, cannot change' using errcode = 'check_violation';
end $$;
create trigger outputs_stay_themselves before update on task_outputs for each row
  when ((new.task_id, new.call_id, new.tenant, new.task_created_at)
        is distinct from (old.task_id, old.call_id, old.tenant, old.task_created_at)
        or (old.kind <> '' and (new.kind, new.uri) is distinct from (old.kind, old.uri)))
  execute function refuse_other_output();

-- Budgets and bills.

-- Caps, and the amounts beyond them, only grow.
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

-- The bill of a lost call gets the reported usage, once, in the transaction that adds the report. No other change.
create function refuse_change_of_a_bill() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if tg_op = 'UPDATE' and old.lost and exists (
       select from usage_reports r
        where (r.task_id, r.step, r.attempt_number) = (new.task_id, new.step, new.attempt_number)
          and age(r.xmin) <= age(pg_current_xact_id()::xid)
          and (r.estimated_input_tokens, r.estimated_output_tokens, r.estimated_cache_creation_input_tokens,
               r.estimated_cache_read_input_tokens, r.estimated_nano_usd)
              = (old.input_tokens, old.output_tokens, old.cache_creation_input_tokens, old.cache_read_input_tokens,
                 old.nano_usd)
          and to_jsonb(new) = to_jsonb(old) || jsonb_build_object(
                'input_tokens', r.input_tokens, 'output_tokens', r.output_tokens,
                'cache_creation_input_tokens', r.cache_creation_input_tokens,
                'cache_read_input_tokens', r.cache_read_input_tokens, 'nano_usd', r.nano_usd,
                'provider_request_id', r.provider_request_id)) then
    return new;
  end if;
  raise exception 'a bill is never changed' using errcode = 'check_violation';
end $$;
create trigger bills_stay before update or delete on token_usage for each row execute function refuse_change_of_a_bill();

create function refuse_change_of_a_report() returns trigger language plpgsql as $$
begin
  raise exception 'a report of usage cannot change' using errcode = 'check_violation';
end $$;
create trigger reports_stay before update or delete on usage_reports
  for each row execute function refuse_change_of_a_report();
