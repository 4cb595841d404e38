-- The outbox of Tenure, for the database of your backend. Run it once; to run it again changes nothing.
--
--   begin;
--   insert into orders …;
--   select tenure.submit('{"goal": "Refund order 7", "agent": "support"}', 'refund-7');
--   commit;

create schema if not exists tenure;

create table if not exists tenure.outbox (
  -- The Idempotency-Key of the submit: however often the row is sent, there is one task.
  request_id      text        primary key check (request_id ~ '^[!-~]{1,128}$'),
  -- The body of POST /v1/tasks.
  task            jsonb       not null check (jsonb_typeof(task) = 'object'),
  created_at      timestamptz not null default clock_timestamp(),
  attempts        int         not null default 0,
  -- When the relay sends it; null: it is sent, or refused.
  next_attempt_at timestamptz default clock_timestamp(),
  -- Why the last attempt failed.
  problem         text        not null default '',
  task_id         text,
  ended_at        timestamptz,
  check (next_attempt_at is not null or ended_at is not null)
);

create index if not exists outbox_due on tenure.outbox (next_attempt_at) where next_attempt_at is not null;
create index if not exists outbox_ended on tenure.outbox (ended_at) where ended_at is not null;

-- Submits a task when the transaction commits. Returns the request id. A repeat changes nothing; another task under a
-- used request id is an error.
create or replace function tenure.submit(task jsonb, request_id text default gen_random_uuid()::text) returns text
language plpgsql as $$
begin
  insert into tenure.outbox (request_id, task) values (submit.request_id, submit.task) on conflict do nothing;
  if not found and (select o.task from tenure.outbox o where o.request_id = submit.request_id) <> submit.task then
    raise unique_violation using message = format('the request id %s is of another task', submit.request_id);
  end if;
  notify tenure_outbox;
  return submit.request_id;
end
$$;
