-- Schedules (ScheduleService), and what became of each of their due times.
create table schedules (
  schedule_id     uuid primary key,
  tenant          text not null,
  name            text not null check (name <> ''),
  request_hash    bytea not null,                             -- of the request that created it, to know a repeat
  spec            bytea not null,                             -- the TaskSpec of its runs, as sent
  cron            text not null,
  time_zone       text not null,
  overlap_policy  text not null constraint schedules_overlap check (overlap_policy in ('SKIP', 'QUEUE', 'CANCEL_PREVIOUS')),
  catch_up_seconds double precision not null check (catch_up_seconds > 0),
  starts_at       timestamptz,
  ends_at         timestamptz,

  paused          boolean not null default false,
  pause_reason    text not null default '',
  pause_actor     text not null default '',

  -- The first due time nobody has dealt with; null: there is none left. It only grows, whatever the clock does.
  next_due_at     timestamptz,
  -- When a sweep has something to do here; null: never, or not while it is paused.
  look_at         timestamptz,

  started_runs    bigint not null default 0 check (started_runs >= 0),
  skipped_runs    bigint not null default 0 check (skipped_runs >= 0),
  failed_runs     bigint not null default 0 check (failed_runs >= 0),
  problem         text not null default '',                   -- why it could not be dealt with the last time
  created_at      timestamptz not null default now(),
  updated_at      timestamptz not null default now(),

  unique (tenant, name),
  constraint paused_is_left_alone check (not paused or look_at is null)
);
create index schedules_due on schedules (look_at) where look_at is not null;

-- What became of due times and triggers: the newest of each schedule, and all that wait or whose task has not ended.
create table schedule_runs (
  schedule_id   uuid not null references schedules on delete cascade,
  source_run_id text not null,
  due_at        timestamptz not null,
  outcome       text not null constraint schedule_runs_outcome check (outcome in ('STARTED', 'WAITING', 'SKIPPED', 'FAILED')),
  reason        text not null default '',
  message       text not null default '',
  due_times     bigint not null default 1 check (due_times >= 1), -- how many, ending with this one, are told of in this row
  task_id       uuid,
  -- Its task may still be going; set back when it is seen to have ended.
  active        boolean not null default false,
  recorded_at   timestamptz not null default now(),
  primary key (schedule_id, source_run_id),
  constraint started_iff_task check ((outcome = 'STARTED') = (task_id is not null)),
  constraint active_only_when_started check (not active or outcome = 'STARTED')
);
create index schedule_runs_newest on schedule_runs (schedule_id, recorded_at desc, due_at desc);
create index schedule_runs_waiting on schedule_runs (schedule_id, due_at) where outcome = 'WAITING';
create index schedule_runs_active on schedule_runs (schedule_id) where active;
