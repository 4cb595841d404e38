-- Rules on tool calls, and what their bounds have counted.

-- The version of a tenant's rules. A call is accepted under a share lock of this row, so a change of the rules comes
-- before or after it. The row stays when the last rule is deleted.
create table rule_sets (
  tenant  text   not null primary key,
  version bigint not null check (version >= 1),
  rules   int    not null check (rules >= 0)
);

create table tool_rules (
  tenant     text        not null references rule_sets,
  name       text        not null,
  rule       bytea       not null,                            -- a ToolRule of the contract
  version    bigint      not null,                            -- of the rule set, when the rule last changed
  actor      text        not null,
  updated_at timestamptz not null default clock_timestamp(),
  primary key (tenant, name)
);

create table rule_counters (
  counter_id     bigint           not null generated always as identity unique,
  tenant         text             not null,
  rule           text             not null,
  subject        bytea            not null,                   -- a digest of the value for which calls are counted apart
  window_seconds double precision not null check (window_seconds >= 0),
  begins_at      timestamptz      not null,
  ends_at        timestamptz,                                 -- null: never
  calls          bigint           not null default 0 check (calls >= 0),
  total          numeric          not null default 0 check (total >= 0),
  primary key (tenant, rule, subject, window_seconds, begins_at)
) with (fillfactor = 70);
create index rule_counters_ended on rule_counters (ends_at) where ends_at is not null;

-- The calls that a counter has counted. `returned`: the call never ran, and the next lock of the counter subtracts it.
create table counted_calls (
  task_id    uuid    not null,
  call_id    text    not null,
  counter_id bigint  not null references rule_counters (counter_id) on delete cascade,
  amount     numeric not null check (amount >= 0),
  returned   boolean not null default false,
  primary key (task_id, call_id, counter_id)
);
create index counted_calls_of_counters on counted_calls (counter_id);
create index counted_calls_returned on counted_calls (counter_id) where returned;

-- A call that provably never ran is given back: it was not run, or it has an outcome although no attempt had begun. The
-- trigger only marks it. Only who locks a counter changes it, so this takes no lock that a bound waits for.
create function return_counted_call() returns trigger language plpgsql as
  'begin execute format(''update %I.counted_calls set returned = true where task_id = $1 and call_id = $2'', tg_table_schema)
   using new.task_id, new.call_id; return null; end';
create trigger return_counted_call after update on calls for each row
  when ((new.state = 'NOT_RUN' and old.state <> 'NOT_RUN')
        or (new.state = 'FINISHED' and old.state = 'ACCEPTED' and not old.begun_before))
  execute function return_counted_call();
