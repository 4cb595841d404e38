-- The tables of the tool service: one fence per task, one record per call, the processes that run calls, and the accepted
-- descriptions of tools.

create table fences (
  task_id      uuid        not null primary key,
  tenant       text        not null,
  -- 0 and '' before the first claim: the row exists so that it can be locked before the decision.
  epoch        bigint      not null default 0 check (epoch >= 0),
  claim_id     text        not null default '',
  -- All calls of this epoch have ended: it is refused, too.
  closed       boolean     not null default false,
  changed_at   timestamptz not null default now(),
  -- When the ledger had pruned the task: its records and files are deleted, and the fence stays, closed at the last claim.
  forgotten_at timestamptz
) with (fillfactor = 70);

create table runners (
  -- One life of a process: a process that could not renew in time continues with a new id.
  runner_id   uuid             not null primary key,
  instance    text             not null,
  -- 0: it stopped, or its process has a new life. It counts as dead at once, which does not prove that it is.
  ttl_seconds double precision not null check (ttl_seconds >= 0),
  renewed_at  timestamptz      not null default clock_timestamp(),
  -- The identity of the process for other processes on its machine: one of them can prove that it is dead, which a missed
  -- renewal does not. '' and 0: unknown, so that only the process itself can prove its end.
  machine_id  text             not null default '',
  boot_id     text             not null default '',
  namespaces  text             not null default '',
  pid         int              not null default 0,
  start_ticks bigint           not null default 0,
  -- Proven: nothing that this life began still runs, and it begins nothing more. Never set because a time ran out.
  ended_at    timestamptz
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
  -- Null when there was nothing to run. No foreign key: runners are deleted, records are kept.
  runner_id      uuid,
  -- Another system makes the effect, such as a tool provider: the death of the runner does not end it.
  acts_elsewhere boolean     not null default false,
  -- A call that runs again after its runner died may have had its effect the first time. If it is cancelled before it
  -- begins again, it is in doubt and not "not run".
  begun_before   boolean     not null default false,
  -- Since when the call is in doubt, and the message of its tool; '': its runner was lost.
  doubted_at     timestamptz,
  doubt_note     text        not null default '',
  outcome        bytea,
  accepted_at    timestamptz not null default clock_timestamp(),
  started_at     timestamptz,
  finished_at    timestamptz,
  primary key (task_id, call_id),
  check ((state = 'FINISHED') = (outcome is not null)),
  check (state <> 'STARTED' or started_at is not null)
) with (fillfactor = 70);

-- Bodies are large, written once and read whole: compressing them costs more than the rest of the write.
alter table calls alter column arguments set storage external;
alter table calls alter column outcome set storage external;

-- Few calls are ever in doubt. With an index on the state, every start and every outcome would touch all indexes of the
-- table (no HOT updates). The time of the doubt, which nearly no call has, is enough.
create index calls_in_doubt on calls (doubted_at, task_id, call_id) where doubted_at is not null;

-- The calls in doubt as people see them.
create view doubts as
select c.task_id, c.call_id, f.tenant, c.tool, c.effect_class, c.arguments, c.call_attempt, c.started_at, c.doubted_at, c.runner_id,
       coalesce(r.instance, '') as runner_instance, r.ended_at is not null and not c.acts_elsewhere as runner_gone, c.doubt_note,
       c.acts_elsewhere
  from calls c join fences f using (task_id) left join runners r using (runner_id)
 where c.doubted_at is not null and c.state = 'IN_DOUBT';

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

-- The tools of MCP servers, as at first contact or as an operator accepted them: a changed description is another tool.
create table pinned_sources (
  source        text primary key,
  first_seen_at timestamptz not null default clock_timestamp()
);

create table tool_pins (
  source      text not null references pinned_sources,
  tool        text not null,
  sha256      text not null,
  definition  text not null,                                  -- for the difference that operators see
  accepted_by text not null default '',                       -- '': at first contact
  accepted_at timestamptz not null default clock_timestamp(),
  primary key (source, tool)
);
