-- What operators do to tasks: a new attempt of an ended one, an end in their words, another owner.

-- An ended task moves again only as a new attempt, and only then does the number of attempts grow. What an attempt came to
-- stays as it is until then.
insert into moves (from_state, to_state) values
  ('FAILED', 'QUEUED'), ('TIMED_OUT', 'QUEUED'), ('CANCELLED', 'QUEUED'), ('COST_EXCEEDED', 'QUEUED');

create function refuse_change_of_an_ended_task() returns trigger language plpgsql as $$
begin
  if (new.attempt = old.attempt + 1 and old.ended_at is not null and new.ended_at is null and new.result = '')
     or (new.attempt = old.attempt and (old.ended_at is null
         or (new.state, new.reason, new.message, new.result, new.ended_at)
            is not distinct from (old.state, old.reason, old.message, old.result, old.ended_at))) then
    return new;
  end if;
  raise exception 'a % task of attempt % stays as it is until its next attempt', old.state, old.attempt
    using errcode = 'check_violation';
end $$;
create trigger ended_tasks_stay before update of state, reason, message, result, ended_at, attempt on tasks for each row
  when (old.ended_at is not null or new.attempt <> old.attempt) execute function refuse_change_of_an_ended_task();

alter table tasks
  -- The result that whoever asked for the pending ending gave; '' for the agent's last words.
  add column ending_result bytea not null default '',
  -- Where a task that an operator took from its owner is to go on, until then: not with that one, or with a certain other.
  add column steered_from  text not null default '',
  add column steered_to    text not null default '',
  add column steered_until timestamptz;

-- The oldest tasks that have not ended, of one state.
create index tasks_aging on tasks (tenant, state, created_at, task_id) where ended_at is null;
-- Those of a tenant that are held.
create index tasks_held on tasks (tenant, task_id) where holds;
