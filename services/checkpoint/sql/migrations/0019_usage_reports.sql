-- A worker that lost its claim may say what its last model call used: the estimate in the bill gives way to it, once, and stays
-- here. Kept as long as the bills.
create table usage_reports (
  task_id        uuid not null,
  step           int not null,
  attempt_number int not null,
  holder         text not null,
  reported_at    timestamptz not null,
  provider_request_id text not null,
  input_tokens   bigint not null check (input_tokens >= 0),
  output_tokens  bigint not null check (output_tokens >= 0),
  cache_creation_input_tokens bigint not null check (cache_creation_input_tokens >= 0),
  cache_read_input_tokens     bigint not null check (cache_read_input_tokens >= 0),
  nano_usd       bigint not null check (nano_usd >= 0),
  estimated_input_tokens  bigint not null,
  estimated_output_tokens bigint not null,
  estimated_cache_creation_input_tokens bigint not null,
  estimated_cache_read_input_tokens     bigint not null,
  estimated_nano_usd bigint not null,
  primary key (task_id, step, attempt_number)
);

create function refuse_change_of_a_report() returns trigger language plpgsql as $$
begin
  raise exception 'a report of usage is never changed' using errcode = 'check_violation';
end $$;
create trigger reports_stay before update or delete on usage_reports
  for each row execute function refuse_change_of_a_report();

-- A lost call's bill becomes what was reported, in the transaction that keeps the report: no other change, and no second.
create or replace function refuse_change_of_a_bill() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
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

-- What a task used goes down only by a report.
create function refuse_using_less() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if exists (select from usage_reports r
              where r.task_id = new.task_id and age(r.xmin) <= age(pg_current_xact_id()::xid)) then
    return new;
  end if;
  raise exception 'epochs, sequences, steps, commits and bills of a task only grow' using errcode = 'check_violation';
end $$;
drop trigger tasks_only_grow on tasks;
create trigger tasks_only_grow before update on tasks for each row
  when (new.epoch < old.epoch or (new.epoch = old.epoch) <> (new.claim_id = old.claim_id)
        or new.granted < old.granted or (new.granted = old.granted) <> (new.granted_claim = old.granted_claim)
        or new.sequence < old.sequence or new.step < old.step or new.claim_count < old.claim_count
        or (new.commit_number < old.commit_number and new.commit_number > 0))
  execute function refuse_going_back();
drop trigger tasks_cost_only_grows on tasks;
create trigger tasks_usage_only_grows before update on tasks for each row
  when (new.input_tokens < old.input_tokens or new.output_tokens < old.output_tokens
        or new.cache_creation_input_tokens < old.cache_creation_input_tokens
        or new.cache_read_input_tokens < old.cache_read_input_tokens
        or new.used_nano_usd < old.used_nano_usd)
  execute function refuse_using_less();
