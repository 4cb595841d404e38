-- The tables of the model runner: the newest model call of each task, which is also its fence, and the processes that make
-- calls.

create table generations (
  task_id        uuid    not null primary key,
  tenant         text    not null,
  -- 0 and '' before the first claim: the row exists so that it can be locked before the decision.
  epoch          bigint  not null default 0 check (epoch >= 0),
  claim_id       text    not null default '',
  -- 0: no call yet.
  step           int     not null default 0,
  attempt_number int     not null default 0,
  state          text    not null default 'FINISHED' check (state in ('ACCEPTED', 'SENT', 'FINISHED')),
  -- The process that makes the call; null: none yet. No foreign key: runners are deleted, calls are kept.
  runner_id      uuid,
  -- The epoch of the claim that began the call; 0: it was cancelled before it began.
  begun_epoch    bigint  not null default 0,
  sent_at        timestamptz,
  -- The last message of Generate's stream, as sent: the answer or the failure.
  ended          bytea,
  -- A date and not a time, so that the writes of a call on one day change no index.
  changed_on     date    not null default current_date,
  check ((state = 'FINISHED') = (ended is not null) or step = 0),
  check (state <> 'SENT' or (sent_at is not null and runner_id is not null))
) with (fillfactor = 70);

-- Answers are written once and read whole: compressing them costs more than the rest of the write.
alter table generations alter column ended set storage external;

create index generations_changed on generations (changed_on);

create table runners (
  -- One process. It has a new id after each start.
  runner_id   uuid             not null primary key,
  instance    text             not null,
  host        text             not null,
  -- The address for other replicas.
  address     text             not null,
  ttl_seconds double precision not null check (ttl_seconds > 0),
  renewed_at  timestamptz      not null default clock_timestamp()
) with (fillfactor = 50);

create index runners_renewed on runners (renewed_at);
create index runners_address on runners (address);
