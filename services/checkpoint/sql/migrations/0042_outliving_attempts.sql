-- Model attempts that outlive their worker: a model runner makes the call, so the attempt stays open while the task is
-- queued for its next owner. Only that rule of a row of `tasks` changes.

set lock_timeout = '5s';

alter table tasks add column model_outlives boolean not null default false;

-- As CHECKs, a rule that comes to null is kept. Of an insert all columns of `old` are null: nothing grows then.
--
-- A fence that goes down lets an old owner write again; a sequence that goes down writes history anew. A claim has one
-- epoch, and so has a grant. Commits count up, and anew for the next claim: the steps' statement sets them back before it moves.
create or replace function refuse_invalid_task() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
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
