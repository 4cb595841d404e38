-- What the ledger's code never does is impossible here, also for SQL written by hand under a service's role. The steps of
-- tasks are counted in thousands a second: what they pass are comparisons within the row, and one look for a whole batch.

-- An operator may close a task out as FAILED while it waits for its retry.
insert into moves (from_state, to_state) values ('RETRY_SCHEDULED', 'FAILED');

-- The table of moves is changed by migrations alone, which disable this trigger around what they do.
create function refuse_change_of_moves() returns trigger language plpgsql as $$
begin
  raise exception 'the table of moves is changed by migrations only' using errcode = 'check_violation';
end $$;
create trigger moves_stay before insert or update or delete or truncate on moves
  for each statement execute function refuse_change_of_moves();

-- Its own search path: nobody puts another table of moves before this one.
--
-- The transition that tells of the move is the newest there is, and this transaction wrote it: nothing of it is older than
-- the transaction. (A savepoint's number is higher.) It is written before the row is moved.
create or replace function refuse_unknown_move() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
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

create function refuse_beginning() returns trigger language plpgsql as $$
begin
  raise exception 'a task begins in the queue, in its first attempt, and nobody''s' using errcode = 'check_violation';
end $$;
create trigger tasks_begin_queued before insert on tasks for each row
  when (new.state <> 'QUEUED' or new.attempt <> 1 or new.epoch <> 0 or new.granted <> 0 or new.commit_number <> 0
        or new.open_calls <> '{}' or new.ending_state <> '')
  execute function refuse_beginning();

create function refuse_new_identity() returns trigger language plpgsql as $$
begin
  if (new.task_id, new.tenant, new.request_id, new.request_hash, new.created_at)
     is distinct from (old.task_id, old.tenant, old.request_id, old.request_hash, old.created_at) then
    raise exception 'a task stays the one it is' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger tasks_stay_themselves before update of task_id, tenant, request_id, request_hash, created_at on tasks
  for each row execute function refuse_new_identity();

-- A fence that goes down lets an old owner write again; a sequence that goes down writes history anew. A claim has one
-- epoch, and so has a grant. Commits count up, and anew for the next claim: the steps' statement sets them back before it moves.
create function refuse_going_back() returns trigger language plpgsql as $$
begin
  raise exception 'epochs, sequences, steps, commits and bills of a task only grow' using errcode = 'check_violation';
end $$;
create trigger tasks_only_grow before update on tasks for each row
  when (new.epoch < old.epoch or (new.epoch = old.epoch) <> (new.claim_id = old.claim_id)
        or new.granted < old.granted or (new.granted = old.granted) <> (new.granted_claim = old.granted_claim)
        or new.sequence < old.sequence or new.step < old.step or new.claim_count < old.claim_count
        or (new.commit_number < old.commit_number and new.commit_number > 0)
        or new.input_tokens < old.input_tokens or new.output_tokens < old.output_tokens
        or new.cache_creation_input_tokens < old.cache_creation_input_tokens
        or new.cache_read_input_tokens < old.cache_read_input_tokens)
  execute function refuse_going_back();

-- A claim is the granted one when it is opened; and it is not opened again once it was taken away.
create function refuse_unknown_claim() returns trigger language plpgsql as $$
begin
  raise exception 'a task is held by the claim that was granted last, and once' using errcode = 'check_violation';
end $$;
create trigger tasks_are_held_once before update of holds, epoch, claim_id on tasks for each row
  when ((new.epoch > old.epoch and (new.epoch <> new.granted or new.claim_id <> new.granted_claim))
        or (new.holds and not old.holds and new.epoch = old.epoch))
  execute function refuse_unknown_claim();

create function refuse_loss_of_a_living_task() returns trigger language plpgsql as $$
begin
  raise exception 'a % task has not ended', old.state using errcode = 'check_violation';
end $$;
create trigger living_tasks_stay before delete on tasks for each row
  when (old.ended_at is null) execute function refuse_loss_of_a_living_task();

-- Sequences are 1, 2, 3 …: what an entry follows is there. Looked at once for all that a statement adds.
create function refuse_gaps() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if exists (select from added a where a.sequence > 1 and not exists (
               select from entries e where e.task_id = a.task_id and e.sequence = a.sequence - 1)) then
    raise exception 'entries of a task have no gaps' using errcode = 'check_violation';
  end if;
  return null;
end $$;
create trigger entries_follow after insert on entries referencing new table as added
  for each statement execute function refuse_gaps();

-- What was billed stays.
create function refuse_change_of_a_bill() returns trigger language plpgsql as $$
begin
  raise exception 'a bill is never changed' using errcode = 'check_violation';
end $$;
create trigger bills_stay before update or delete on token_usage for each row execute function refuse_change_of_a_bill();

-- The lives of etcd and what they gave out, of tasks and of other resources.
create function refuse_older_epoch() returns trigger language plpgsql as $$
begin
  raise exception 'generations and epochs only grow' using errcode = 'check_violation';
end $$;
create trigger epochs_only_grow before update on epochs for each row
  when (new.generation < old.generation or new.highest_epoch < old.highest_epoch) execute function refuse_older_epoch();
create trigger epochs_stay before delete on epochs for each row execute function refuse_older_epoch();
create trigger lease_epochs_only_grow before update on lease_grants for each row
  when (new.epoch < old.epoch or (new.epoch = old.epoch and new.claim_id <> old.claim_id))
  execute function refuse_older_epoch();
create trigger lease_epochs_stay before delete on lease_grants for each row execute function refuse_older_epoch();

-- The result in its shape stays with the others.
create or replace function refuse_change_of_an_ended_task() returns trigger language plpgsql as $$
begin
  if (new.attempt = old.attempt + 1 and old.ended_at is not null and new.ended_at is null and new.result = '')
     or (new.attempt = old.attempt and (old.ended_at is null
         or (new.state, new.reason, new.message, new.result, new.result_json, new.ended_at)
            is not distinct from (old.state, old.reason, old.message, old.result, old.result_json, old.ended_at))) then
    return new;
  end if;
  raise exception 'a % task of attempt % stays as it is until its next attempt', old.state, old.attempt
    using errcode = 'check_violation';
end $$;
drop trigger ended_tasks_stay on tasks;
create trigger ended_tasks_stay before update of state, reason, message, result, result_json, ended_at, attempt on tasks
  for each row when (old.ended_at is not null or new.attempt <> old.attempt)
  execute function refuse_change_of_an_ended_task();
