-- The statements of schedules. A schedule's row is locked before any task's, the one order for all transactions that
-- lock both.

-- name: lock_tenant
-- Creations of schedules of one tenant wait here for each other.
select pg_advisory_xact_lock(hashtextextended('schedules of ' || %(tenant)b::text, 0));

-- name: count
-- By the unique index on (tenant, name).
select count(*) from schedules where tenant = %(tenant)b;

-- name: create
-- The database's time decides the next due time: the caller computed it in the same transaction.
insert into schedules (schedule_id, tenant, name, request_hash, spec, cron, time_zone, overlap_policy, catch_up_seconds,
                       starts_at, ends_at, next_due_at, look_at)
values (%(schedule_id)b::text::uuid, %(tenant)b, %(name)b, %(request_hash)b, %(spec)b, %(cron)b, %(time_zone)b,
        %(overlap_policy)b, %(catch_up_seconds)b, %(starts_at)b::timestamptz, %(ends_at)b::timestamptz,
        %(next_due_at)b::timestamptz, %(next_due_at)b::timestamptz);

-- name: now
-- The only clock that decides.
select clock_timestamp();

-- part: read
-- The columns of ScheduleRow.
select {schedule}, clock_timestamp(),
       (select count(*) from schedule_runs r where r.schedule_id = s.schedule_id and r.outcome = 'WAITING')

-- name: find
-- One schedule of a tenant, by its id or its name.
{read}
  from schedules s
 where s.tenant = %(tenant)b
   and (s.schedule_id = nullif(%(schedule_id)b::text, '')::uuid or s.name = nullif(%(name)b::text, ''));

-- name: lock
-- The same, locked; its time is read after the lock was acquired.
with held as materialized (
  select * from schedules s
   where s.tenant = %(tenant)b
     and (s.schedule_id = nullif(%(schedule_id)b::text, '')::uuid or s.name = nullif(%(name)b::text, ''))
     for no key update
)
{read}
  from held s;

-- name: due
-- Schedules that a sweep must handle, the longest due first. Each is then locked by itself.
select schedule_id::text from schedules where look_at <= now() order by look_at limit %(limit)b;

-- name: lock_due
-- One of them, unless another replica has it locked or has handled it: checked again under the lock.
with held as materialized (
  select * from schedules s
   where s.schedule_id = %(schedule_id)b::text::uuid and s.look_at <= clock_timestamp()
     for no key update skip locked
)
{read}
  from held s;

-- name: list
-- A page by name, limited by a sum of bytes, at least one row.
{read}
  from (select s.*, sum(octet_length(s.spec)) over (order by s.name) - octet_length(s.spec) as bytes_before
          from schedules s
         where s.tenant = %(tenant)b and s.name > %(after_name)b
         order by s.name
         limit %(page_size)b) s
 where s.bytes_before < %(page_bytes)b
 order by s.name;

-- name: count_after
-- How many rows follow from a page on: the page itself may be limited by its bytes.
select count(*) from schedules where tenant = %(tenant)b and name > %(after_name)b;

-- name: advance
-- The result of a sweep, under the lock.
update schedules
   set next_due_at = %(next_due_at)b::timestamptz, look_at = %(look_at)b::timestamptz,
       started_runs = started_runs + %(started)b, skipped_runs = skipped_runs + %(skipped)b,
       failed_runs = failed_runs + %(failed)b, problem = '', updated_at = clock_timestamp()
 where schedule_id = %(schedule_id)b::text::uuid;

-- name: count_started
-- The task of a trigger.
update schedules set started_runs = started_runs + 1, updated_at = clock_timestamp()
 where schedule_id = %(schedule_id)b::text::uuid;

-- name: postpone
-- A failed schedule is left alone for a while, so that it does not delay others.
update schedules
   set look_at = clock_timestamp() + make_interval(secs => %(seconds)b), problem = %(problem)b,
       updated_at = clock_timestamp()
 where schedule_id = %(schedule_id)b::text::uuid and look_at <= clock_timestamp();

-- name: pause
-- No sweep handles a paused schedule. The next due time is kept, so that a clock that goes back repeats nothing.
update schedules
   set paused = true, look_at = null, pause_reason = %(reason)b, pause_actor = %(actor)b, updated_at = clock_timestamp()
 where schedule_id = %(schedule_id)b::text::uuid and not paused;

-- name: resume
-- Due at once, because of waiting runs.
update schedules
   set paused = false, pause_reason = '', pause_actor = '', next_due_at = %(next_due_at)b::timestamptz,
       look_at = clock_timestamp(), problem = '', updated_at = clock_timestamp()
 where schedule_id = %(schedule_id)b::text::uuid;

-- name: decided_until
-- The last due time that was decided; triggers are none.
select max(due_at) from schedule_runs
 where schedule_id = %(schedule_id)b::text::uuid and source_run_id not like 'trigger/%%';

-- name: update
-- Runs under the lock. Due at once, unless paused: because of waiting runs, and because a problem may be solved.
update schedules
   set spec = %(spec)b, cron = %(cron)b, time_zone = %(time_zone)b, overlap_policy = %(overlap_policy)b,
       catch_up_seconds = %(catch_up_seconds)b, starts_at = %(starts_at)b::timestamptz, ends_at = %(ends_at)b::timestamptz,
       next_due_at = %(next_due_at)b::timestamptz, look_at = case when not paused then clock_timestamp() end,
       revision = revision + 1, problem = '', updated_at = clock_timestamp()
 where schedule_id = %(schedule_id)b::text::uuid;

-- name: delete
-- Also deletes its runs, by the foreign key.
delete from schedules where schedule_id = %(schedule_id)b::text::uuid;

-- name: active_tasks
-- Live tasks of the schedule. Ended tasks are removed from its active ones.
with over as (
  update schedule_runs r set active = false
   where r.schedule_id = %(schedule_id)b::text::uuid and r.active
     and not exists (select from tasks t where t.task_id = r.task_id and t.ended_at is null)
)
select r.task_id::text from schedule_runs r
 where r.schedule_id = %(schedule_id)b::text::uuid and r.active
   and exists (select from tasks t where t.task_id = r.task_id and t.ended_at is null)
 limit %(limit)b;

-- name: waiting
-- Waiting due times, oldest first.
select due_at from schedule_runs
 where schedule_id = %(schedule_id)b::text::uuid and outcome = 'WAITING' order by due_at;

-- name: record
-- The records of due times, one row each. A decided row stays; only a waiting row is decided later.
insert into schedule_runs as r (schedule_id, source_run_id, due_at, outcome, reason, message, due_times, task_id, active)
select %(schedule_id)b::text::uuid, d.source_run_id, d.due_at::timestamptz, d.outcome, d.reason, d.message, d.due_times,
       nullif(d.task_id, '')::uuid, d.outcome = 'STARTED'
  from unnest(%(source_run_ids)b::text[], %(due_ats)b::text[], %(outcomes)b::text[], %(reasons)b::text[],
              %(messages)b::text[], %(due_times)b::bigint[], %(task_ids)b::text[])
       as d(source_run_id, due_at, outcome, reason, message, due_times, task_id)
on conflict (schedule_id, source_run_id) do update
   set outcome = excluded.outcome, reason = excluded.reason, message = excluded.message, task_id = excluded.task_id,
       active = excluded.active, recorded_at = excluded.recorded_at
 where r.outcome = 'WAITING';

-- name: prune
-- Keeps the newest, and all that are not over.
delete from schedule_runs
 where schedule_id = %(schedule_id)b::text::uuid and outcome <> 'WAITING' and not active
   and source_run_id in (select source_run_id from schedule_runs
                          where schedule_id = %(schedule_id)b::text::uuid
                          order by recorded_at desc, due_at desc offset %(kept)b);

-- name: runs
-- The newest, with the states of their tasks.
select r.source_run_id, r.due_at, r.outcome, r.reason, r.message, r.due_times, coalesce(r.task_id::text, ''),
       coalesce(t.state, ''), r.recorded_at
  from schedule_runs r left join tasks t using (task_id)
 where r.schedule_id = %(schedule_id)b::text::uuid
 order by r.recorded_at desc, r.due_at desc
 limit %(limit)b;
