-- The tool service's own tables: one fence per task, one record per call, and who is alive to run them.

create table fences (
  task_id    uuid        not null primary key,
  tenant     text        not null,
  -- 0 and '' until the first claim is seen: the row exists to be locked before it is decided on.
  epoch      bigint      not null default 0 check (epoch >= 0),
  claim_id   text        not null default '',
  -- Everything of this epoch is ended: it is refused too.
  closed     boolean     not null default false,
  changed_at timestamptz not null default now()
) with (fillfactor = 70);

create table runners (
  -- One life of a process: one that could not renew in time goes on under another id.
  runner_id   uuid             not null primary key,
  instance    text             not null,
  ttl_seconds double precision not null check (ttl_seconds > 0),
  renewed_at  timestamptz      not null default clock_timestamp()
) with (fillfactor = 50);

create table calls (
  task_id        uuid        not null references fences (task_id),
  call_id        text        not null check (length(call_id) between 3 and 32),
  tool           text        not null,
  effect_class   text        not null check (effect_class in ('PURE', 'IDEMPOTENT', 'KEYED', 'UNSAFE')),
  arguments_hash bytea       not null check (length(arguments_hash) = 32),
  arguments      bytea       not null,
  state          text        not null check (state in ('ACCEPTED', 'STARTED', 'FINISHED', 'NOT_RUN', 'IN_DOUBT')),
  call_attempt   int         not null check (call_attempt >= 1),
  -- The claim that last authorised it.
  epoch          bigint      not null,
  claim_id       text        not null,
  -- Absent when nothing had to be run. No foreign key: runners are forgotten, records are kept.
  runner_id      uuid,
  outcome        bytea,
  accepted_at    timestamptz not null default clock_timestamp(),
  started_at     timestamptz,
  finished_at    timestamptz,
  primary key (task_id, call_id),
  check ((state = 'FINISHED') = (outcome is not null)),
  check (state <> 'STARTED' or started_at is not null)
) with (fillfactor = 70);

-- Bodies are large, written once and read whole: compressing them costs more than all the rest of the write.
alter table calls alter column arguments set storage external;
alter table calls alter column outcome set storage external;

create table refusals (
  refusal_id      bigint      not null generated always as identity primary key,
  task_id         uuid        not null,
  tenant          text        not null,
  method          text        not null,
  presented_epoch bigint      not null,
  current_epoch   bigint      not null,
  holder          text        not null,
  refused_at      timestamptz not null default clock_timestamp()
);

create index refusals_of_task on refusals (task_id, refusal_id);
