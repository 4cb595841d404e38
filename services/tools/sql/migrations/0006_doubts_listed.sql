-- Replicas from before this put calls in doubt and say no time: those too are to be found by who looks through doubts.
create function stamp_doubt() returns trigger language plpgsql as $$
begin
  new.doubted_at := clock_timestamp();
  return new;
end $$;
create trigger doubts_have_a_time before update of state on calls for each row
  when (new.state = 'IN_DOUBT' and new.doubted_at is null)
  execute function stamp_doubt();

-- What people look through. Few calls are ever in doubt. An index that mentions the state would make every start and every
-- outcome touch all indexes of the table (no HOT updates): the time of the doubt, which nearly no call has, does as well.
create index calls_in_doubt on calls (doubted_at, task_id, call_id) where doubted_at is not null;
