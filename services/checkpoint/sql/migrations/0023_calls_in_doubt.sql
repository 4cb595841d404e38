-- What a task waits for that is TOOL_IN_DOUBT: "<call_id>:<attempt>" of each call that nobody has given a word on yet. Empty
-- for waits that were begun before this, or by workers that do not say.
alter table tasks add column calls_in_doubt text[] not null default '{}';

-- Replicas from before this move tasks without a thought for it: what a wait was over goes with the wait, whoever ends it.
create function forget_calls_in_doubt() returns trigger language plpgsql as $$
begin
  new.calls_in_doubt := '{}';
  return new;
end $$;
create trigger only_waits_have_calls_in_doubt before update of state on tasks for each row
  when (new.calls_in_doubt <> '{}' and (new.state <> 'WAITING_USER' or new.reason <> 'TOOL_IN_DOUBT'))
  execute function forget_calls_in_doubt();
