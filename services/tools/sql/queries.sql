-- The statements of the tool service. All take locks in one order: fences by task_id, then calls by (task_id, call_id),
-- then effects by digest.
-- Batches lock calls in a lateral subquery: each record is then found by its key, however few records there were when
-- Postgres made the plan.

-- name: ensure_fences
-- Inserts missing fences, because a missing row cannot be locked.
insert into fences (task_id, tenant)
select * from unnest(%(task_ids)b::uuid[], %(tenants)b::text[]) as w(task_id, tenant) order by task_id
on conflict (task_id) do nothing;

-- name: lock_fences
-- Locks fences for the transaction that decides and writes. A fence that is read without the lock would let a stale
-- write through.
select task_id, tenant, epoch, claim_id, closed
  from fences where task_id = any(%(task_ids)b::uuid[]) order by task_id
   for no key update;

-- name: raise_fences
-- Writes fences that lock_fences has locked. changed_at is read under that lock, as started_at of a call is: the
-- checker compares them. A raised fence belongs to a task that the ledger has, so it also clears forgotten_at: a
-- forgotten task exists again when an older ledger was restored.
update fences f
   set epoch = w.epoch, claim_id = w.claim_id, closed = w.closed, changed_at = clock_timestamp(), forgotten_at = null
  from unnest(%(task_ids)b::uuid[], %(epochs)b::bigint[], %(claim_ids)b::text[], %(closed)b::boolean[])
    as w(task_id, epoch, claim_id, closed)
 where f.task_id = w.task_id;

-- name: lock_calls
-- Locks and reads calls. A statement of its own after lock_fences: its snapshot must not be older than the fence locks.
-- A runner is alive while its last renewal is younger than its TTL, by the database's clock. It is gone when there is
-- proof, and never for a call that acts elsewhere: the end of a runner ends no effect there.
select c.task_id, c.call_id, c.effect_class, c.arguments_hash, c.state, c.call_attempt, c.epoch, c.claim_id,
       c.runner_id, coalesce(r.renewed_at + r.ttl_seconds * interval '1 second' > clock_timestamp(), false), c.outcome,
       r.ended_at is not null and not c.acts_elsewhere, c.doubt_note, c.begun_before,
       coalesce((select e.idempotency_key from effect_calls e
                  where e.task_id = c.task_id and e.call_id = c.call_id), '')
  from (select task_id, call_id from unnest(%(task_ids)b::uuid[], %(call_ids)b::text[]) as u(task_id, call_id)
         order by task_id, call_id) w
 cross join lateral (select * from calls k where k.task_id = w.task_id and k.call_id = w.call_id
                        for no key update) c
  left join runners r using (runner_id);

-- name: insert_calls
-- Inserts new calls. A call whose outcome is known without running the tool is FINISHED at once. A new call with a
-- resolution had a record that was lost: it begins with the attempt after the resolution's, or in doubt.
insert into calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt, epoch, claim_id,
                   acts_elsewhere, begun_before, runner_id, doubted_at, doubt_note, outcome, finished_at, plan_id)
select w.task_id, w.call_id, w.tool, w.effect_class, w.arguments_hash, w.arguments, w.state, w.call_attempt, w.epoch, w.claim_id,
       w.acts_elsewhere, w.state = 'ACCEPTED' and w.call_attempt > 1,
       case when w.state = 'ACCEPTED' then %(runner_id)b::uuid end,
       case when w.state = 'IN_DOUBT' then clock_timestamp() end, w.doubt_note, nullif(w.outcome, ''::bytea),
       case when w.state = 'FINISHED' then clock_timestamp() end, w.plan_id
  from unnest(%(task_ids)b::uuid[], %(call_ids)b::text[], %(tools)b::text[], %(effect_classes)b::text[],
              %(hashes)b::bytea[], %(arguments)b::bytea[], %(states)b::text[], %(attempts)b::int[], %(epochs)b::bigint[],
              %(claim_ids)b::text[], %(acts_elsewhere)b::boolean[], %(outcomes)b::bytea[], %(doubt_notes)b::text[],
              %(plan_ids)b::text[])
    as w(task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt, epoch, claim_id,
         acts_elsewhere, outcome, doubt_note, plan_id);

-- name: accept_new_calls
-- Accepts calls without a record, under an admitted claim, in one statement: locks the fences, inserts or raises those
-- that a newer claim presents, and inserts the records. Returns what it accepted. It refuses nothing: a call that it
-- left out has a record already, or its claim differs from the fence, and goes the way of lock_fences and lock_calls.
-- A record that the snapshot does not see conflicts all the same.
-- Accepts nothing under another epoch of the stops than the caller knows: the caller decides by the stops of its epoch.
-- `starts`: calls that their runner begins at once. They are STARTED under the same locks. `at` is read under the lock of
-- the fence, as start_calls reads started_at; one reading serves both times, so that no call starts before it is accepted.
with w as materialized (
  select *
    from unnest(%(task_ids)b::uuid[], %(tenants)b::text[], %(call_ids)b::text[], %(tools)b::text[],
                %(effect_classes)b::text[], %(hashes)b::bytea[], %(arguments)b::bytea[], %(epochs)b::bigint[],
                %(claim_ids)b::text[], %(acts_elsewhere)b::boolean[], %(starts)b::boolean[]) with ordinality
      as u(task_id, tenant, call_id, tool, effect_class, arguments_hash, arguments, epoch, claim_id, acts_elsewhere, starts,
           ord)
   where (select epoch from stop_epoch) = %(stop_epoch)b::bigint
   order by task_id, call_id
), presented as materialized (
  select distinct on (task_id) task_id, tenant, epoch, claim_id from w order by task_id, epoch desc
), fence as materialized (
  select p.*, f.epoch as current_epoch, f.claim_id = p.claim_id and not f.closed as is_open
    from presented p left join lateral (
      select k.epoch, k.claim_id, k.closed from fences k where k.task_id = p.task_id for no key update
    ) f on true
), raised as (
  insert into fences as f (task_id, tenant, epoch, claim_id, changed_at)
  select task_id, tenant, epoch, claim_id, clock_timestamp() from fence
   where current_epoch is null or current_epoch < epoch order by task_id
  on conflict (task_id) do update
     set epoch = excluded.epoch, claim_id = excluded.claim_id, closed = false, changed_at = clock_timestamp(),
         forgotten_at = null
   where f.epoch < excluded.epoch
  returning task_id, epoch, claim_id
), admitted as (
  select task_id, epoch, claim_id from fence where current_epoch = epoch and is_open
  union all select task_id, epoch, claim_id from raised
), inserted as (
  insert into calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt, epoch,
                     claim_id, acts_elsewhere, runner_id, accepted_at, started_at)
  select task_id, call_id, tool, effect_class, arguments_hash, arguments,
         case when starts then 'STARTED' else 'ACCEPTED' end, 1, epoch, claim_id, acts_elsewhere, %(runner_id)b::uuid,
         at, case when starts then at end
    from (select w.*, clock_timestamp() as at from w join admitted using (task_id, epoch, claim_id)) as n
   order by task_id, call_id
  on conflict (task_id, call_id) do nothing
  returning task_id, call_id
)
select w.ord - 1 from w join inserted using (task_id, call_id);

-- name: change_calls
-- Changes calls that lock_calls has locked: this runner gets them, they are in doubt, they have an outcome, or another
-- claim authorises them. A call that had begun has begun_before from its next attempt on, also when that attempt ends
-- without a run, because its tool is gone, or runs by a resolution: only the resolution says that the effect did not
-- happen. A call that was not made (`not_run` begins its note) had not begun. Its settlement begins anew. `settled`:
-- this runner settles the call of a lost one without its effect. The record then names this runner, so no proof about
-- it says anything of the lost one. started_at stays that of the attempt that may have had the effect.
update calls c
   set state = w.state, call_attempt = w.call_attempt, epoch = w.epoch, claim_id = w.claim_id,
       runner_id = case when w.state = 'ACCEPTED' or w.settled then %(runner_id)b::uuid else c.runner_id end,
       acts_elsewhere = c.acts_elsewhere or w.acts_elsewhere or w.settled,
       settling_since = case when w.settled then coalesce(c.settling_since, clock_timestamp())
                             when c.state <> 'IN_DOUBT' then c.settling_since end,
       begun_before = c.begun_before or w.settled
                      or (c.state in ('STARTED', 'IN_DOUBT') and w.call_attempt > c.call_attempt
                          and not (c.state = 'IN_DOUBT' and starts_with(c.doubt_note, %(not_run)b::text))),
       doubted_at = case when w.state = 'IN_DOUBT' then clock_timestamp() end, doubt_note = w.doubt_note,
       outcome = nullif(w.outcome, ''::bytea),
       finished_at = case when w.state = 'FINISHED' then clock_timestamp() end
  from unnest(%(task_ids)b::uuid[], %(call_ids)b::text[], %(states)b::text[], %(attempts)b::int[],
              %(epochs)b::bigint[], %(claim_ids)b::text[], %(acts_elsewhere)b::boolean[], %(outcomes)b::bytea[],
              %(doubt_notes)b::text[], %(settled)b::boolean[])
    as w(task_id, call_id, state, call_attempt, epoch, claim_id, acts_elsewhere, outcome, doubt_note, settled)
 where c.task_id = w.task_id and c.call_id = w.call_id;

-- name: start_calls
-- The STARTED mark immediately before the effect. The share lock on the fence lets several starts of a task run
-- together, and none pass a raise or a close of the fence. Starts nothing under another epoch of the stops than the
-- caller knows. A call that is STARTED already under this attempt and this
-- runner is the same start, repeated after a lost answer.
with w as materialized (
  select * from unnest(%(ordinals)b::int[], %(task_ids)b::uuid[], %(call_ids)b::text[], %(attempts)b::int[])
    as w(ord, task_id, call_id, call_attempt)
   where (select epoch from stop_epoch) = %(stop_epoch)b::bigint
), fence as materialized (
  select t.task_id, f.epoch, f.claim_id
    from (select distinct task_id from w order by task_id) t cross join lateral (
      select f.epoch, f.claim_id from fences f where f.task_id = t.task_id and not f.closed for share
    ) f
), allowed as materialized (
  select w.*, f.epoch, f.claim_id from w join fence f using (task_id) order by task_id, call_id
), held as materialized (
  select f.ord, f.task_id, f.call_id
    from allowed f cross join lateral (
      select from calls c
       where c.task_id = f.task_id and c.call_id = f.call_id
         and c.call_attempt = f.call_attempt and c.epoch = f.epoch and c.claim_id = f.claim_id
         and (c.state = 'ACCEPTED' or (c.state = 'STARTED' and c.runner_id = %(runner_id)b::uuid))
         for no key update
    ) c
)
update calls c
   set state = 'STARTED', runner_id = %(runner_id)b::uuid, started_at = clock_timestamp()
  from held h where c.task_id = h.task_id and c.call_id = h.call_id
returning h.ord;

-- name: read_stops
-- The epoch of the stops, with each stop in force; one row without a stop when there is none.
select e.epoch, s.tenant, s.agent, s.queue, s.tool, s.reason, s.actor, s.stopped_at, s.epoch, s.by_quota
  from stop_epoch e left join stops s on true order by s.epoch;

-- name: raise_stop_epoch
-- Takes a newer epoch of the ledger's stops. No row: the present one is as new.
update stop_epoch set epoch = %(epoch)b::bigint where epoch < %(epoch)b::bigint returning epoch;

-- name: clear_stops
-- Removes the stops of the former epoch.
delete from stops;

-- name: insert_stops
-- Inserts the stops of the epoch that raise_stop_epoch has taken. Of two with the same selectors one is enough.
insert into stops (tenant, agent, queue, tool, reason, actor, stopped_at, epoch, by_quota)
select * from unnest(%(tenants)b::text[], %(agents)b::text[], %(queues)b::text[], %(tools)b::text[], %(reasons)b::text[],
                     %(actors)b::text[], %(stopped_ats)b::timestamptz[], %(epochs)b::bigint[],
                     %(by_quotas)b::boolean[])
on conflict do nothing;

-- name: calls_in_flight
-- The calls of tasks that were in flight at a time, or began after it.
select c.task_id::text, f.tenant, c.call_id, c.tool, c.effect_class, c.state,
       coalesce(r.renewed_at + r.ttl_seconds * interval '1 second' > clock_timestamp(), false), c.begun_before
  from unnest(%(task_ids)b::uuid[]) as w(task_id)
  join fences f using (task_id)
 cross join lateral (select * from calls k where k.task_id = w.task_id) c
  left join runners r on r.runner_id = c.runner_id
 where c.tool like %(tool)b::text
   and (c.state in ('ACCEPTED', 'STARTED') or c.finished_at >= %(since)b::timestamptz or c.doubted_at >= %(since)b::timestamptz)
 order by c.finished_at is not null, c.task_id, c.call_id limit %(most)b::int;

-- name: withdraw_start
-- Withdraws a start whose effect did not begin in time and never will. The call is ACCEPTED again; but when the fence
-- is closed, or the call was already reported as in doubt, it does not run any more: it is IN_DOUBT if an earlier
-- attempt had begun, else NOT_RUN. The next attempt number makes a start that is still on its way void. A record without
-- a start says that the call never began, so a call of which an earlier attempt had begun keeps a time of a start.
with fence as materialized (
  select f.closed from fences f where f.task_id = %(task_id)b::uuid for share
)
update calls c
   set state = case when c.state <> 'IN_DOUBT' and not f.closed then 'ACCEPTED'
                    when c.begun_before then 'IN_DOUBT' else 'NOT_RUN' end,
       call_attempt = c.call_attempt + 1, started_at = case when c.begun_before then c.started_at end,
       doubted_at = case when c.begun_before and (c.state = 'IN_DOUBT' or f.closed)
                         then coalesce(c.doubted_at, clock_timestamp()) end
  from fence f
 where c.task_id = %(task_id)b::uuid and c.call_id = %(call_id)b::text
   and c.call_attempt = %(call_attempt)b::int and c.state in ('ACCEPTED', 'STARTED', 'IN_DOUBT')
returning c.state, coalesce(c.doubted_at >= now(), false) as is_new_doubt;

-- name: go_on_settling
-- Part of the settlement of a STARTED call of this runner: notes when it began, and asks the fence before each try, under
-- the share lock that start_calls takes. Returns whether the claim of the record is the newest and not closed, its epoch,
-- since how many seconds the call is settled, and the epoch of the stops. No row: the call has a newer attempt or an
-- outcome.
with fence as materialized (
  select f.epoch, f.claim_id, f.closed from fences f where f.task_id = %(task_id)b::uuid for share
)
update calls c set settling_since = coalesce(c.settling_since, clock_timestamp())
  from fence f
 where c.task_id = %(task_id)b::uuid and c.call_id = %(call_id)b::text
   and c.call_attempt = %(call_attempt)b::int and c.state = 'STARTED' and c.runner_id = %(runner_id)b::uuid
returning not f.closed and c.epoch = f.epoch and c.claim_id = f.claim_id, c.epoch,
          extract(epoch from clock_timestamp() - c.settling_since)::double precision, (select epoch from stop_epoch);

-- name: release_start
-- Releases a start whose effect may have begun, of a call that another attempt may continue. A STARTED
-- call without a runner is treated like the call of a dead runner: another attempt runs it, or the task's end puts it
-- in doubt.
update calls set runner_id = null
 where task_id = %(task_id)b::uuid and call_id = %(call_id)b::text
   and call_attempt = %(call_attempt)b::int and state = 'STARTED'
returning call_id;

-- name: finish_calls
-- Records outcomes. It compares the attempt and not the fence: an effect that happened is recorded even when its owner
-- is stale, and its outcome ends a doubt. An empty outcome: the tool does not know the effect, and the call is in
-- doubt. The outcome of an effect also adds a receipt to the row of the fence (by a trigger of its table), so that fence is
-- locked first.
with w as materialized (
  select ord, task_id, call_id, call_attempt, nullif(outcome, ''::bytea) as outcome, doubt_note
    from unnest(%(ordinals)b::int[], %(task_ids)b::uuid[], %(call_ids)b::text[], %(attempts)b::int[],
                %(outcomes)b::bytea[], %(doubt_notes)b::text[])
      as u(ord, task_id, call_id, call_attempt, outcome, doubt_note)
   order by task_id, call_id
), fence as materialized (
  select from (
    select distinct w.task_id from w cross join lateral (
      select from calls c where c.task_id = w.task_id and c.call_id = w.call_id and c.effect_class <> 'PURE' offset 0
    ) c where w.outcome is not null order by task_id
  ) t cross join lateral (select from fences f where f.task_id = t.task_id for no key update) f
), held as materialized (
  select w.ord, w.task_id, w.call_id, w.outcome, w.doubt_note
    from w cross join lateral (
      select from calls c
       where c.task_id = w.task_id and c.call_id = w.call_id
         and c.call_attempt = w.call_attempt and c.state in ('STARTED', 'IN_DOUBT')
         for no key update
    ) c
   where (select count(*) from fence) >= 0
)
update calls c
   set state = case when h.outcome is null then 'IN_DOUBT' else 'FINISHED' end, outcome = h.outcome,
       finished_at = case when h.outcome is not null then clock_timestamp() end,
       doubted_at = case when h.outcome is null then coalesce(c.doubted_at, clock_timestamp()) end,
       doubt_note = case when h.outcome is null then h.doubt_note else '' end
  from held h where c.task_id = h.task_id and c.call_id = h.call_id
returning h.ord;

-- name: call_off
-- Part of closing, in the transaction that closes the fence: ACCEPTED calls can no longer start. If an earlier attempt
-- of such a call had begun, its effect is unknown, and the call is in doubt.
with held as materialized (
  select call_id from calls where task_id = %(task_id)b::uuid and state = 'ACCEPTED' order by call_id for no key update
)
update calls c
   set state = case when c.begun_before then 'IN_DOUBT' else 'NOT_RUN' end,
       finished_at = case when c.begun_before then null else clock_timestamp() end,
       doubted_at = case when c.begun_before then clock_timestamp() end
  from held h where c.task_id = %(task_id)b::uuid and c.call_id = h.call_id
returning c.state;

-- name: settle_dead
-- Part of closing: puts STARTED calls of dead runners in doubt, whatever their effect class, because no outcome will
-- come.
with held as materialized (
  select c.call_id from calls c left join runners r using (runner_id)
   where c.task_id = %(task_id)b::uuid and c.state = 'STARTED'
     and coalesce(r.renewed_at + r.ttl_seconds * interval '1 second' <= clock_timestamp(), true)
   order by c.call_id for no key update of c
)
update calls c set state = 'IN_DOUBT', doubted_at = clock_timestamp()
  from held h where c.task_id = %(task_id)b::uuid and c.call_id = h.call_id;

-- name: is_any_started
-- Closing waits until this is false.
select exists (select from calls where task_id = %(task_id)b::uuid and state = 'STARTED');

-- name: task_calls
-- All call records of a task.
select call_id, tool, effect_class, state, call_attempt, epoch, outcome, started_at, accepted_at, doubt_note
  from calls where task_id = %(task_id)b::uuid order by accepted_at, call_id;

-- name: call_log
-- One page of a task's call log, for the task's tenant only. The order does not depend on the database's collation.
select c.call_id, c.tool, c.effect_class, c.state, c.call_attempt, c.epoch, c.claim_id, c.runner_id, c.arguments_hash,
       c.outcome, coalesce(c.receipt_number, 0), coalesce(c.receipt_link, ''), coalesce(k.idempotency_key, ''), c.accepted_at,
       c.started_at, c.finished_at, c.settling_since, c.plan_id, c.begun_before
  from calls c join fences f using (task_id)
  left join effect_calls k on k.task_id = c.task_id and k.call_id = c.call_id
 where c.task_id = %(task_id)b::uuid and f.tenant = %(tenant)b::text
   and c.call_id collate "C" > %(after_call_id)b::text collate "C"
   and (cardinality(%(call_ids)b::text[]) = 0 or c.call_id = any(%(call_ids)b::text[]))
 order by c.call_id collate "C" limit %(limit)b::int;

-- part: doubt
-- A call in doubt, with the beginning of its arguments.
select task_id, call_id, tool, effect_class, substring(arguments from 1 for %(most_bytes)b::int), octet_length(arguments),
       call_attempt, started_at, doubted_at, runner_id, runner_instance, runner_gone, doubt_note, acts_elsewhere

-- name: calls_in_doubt
-- One page of a tenant's calls in doubt, the oldest doubt first.
{doubt}
  from doubts
 where tenant = %(tenant)b::text
   and (doubted_at, task_id, call_id) > (%(after)b::timestamptz, %(after_task_id)b::uuid, %(after_call_id)b::text)
 order by doubted_at, task_id, call_id limit %(limit)b::int;

-- name: calls_in_doubt_of_task
-- One page of a task's calls in doubt. It searches by the task, because most calls in doubt belong to other tasks.
with of_task as materialized (select * from doubts where tenant = %(tenant)b::text and task_id = %(task_id)b::uuid)
{doubt}
  from of_task
 where (doubted_at, task_id, call_id) > (%(after)b::timestamptz, %(after_task_id)b::uuid, %(after_call_id)b::text)
 order by doubted_at, task_id, call_id limit %(limit)b::int;

-- name: named_calls_in_doubt
-- Those of the named calls of a tenant that are in doubt.
{doubt}
  from unnest(%(task_ids)b::uuid[], %(call_ids)b::text[]) as w(task_id, call_id) join doubts using (task_id, call_id)
 where tenant = %(tenant)b::text;

-- name: read_fence
-- A task's fence. It is read after the calls, so that no call's epoch is above the fence's.
select epoch, claim_id, closed, changed_at, receipts, receipt_head
  from fences where task_id = %(task_id)b::uuid and tenant = %(tenant)b::text;

-- name: closed_fences
-- Those of this replica's tasks whose fence was closed, by any replica.
select task_id, epoch from fences where task_id = any(%(task_ids)b::uuid[]) and closed;

-- name: calls_not_running
-- Those of the calls that ran in other replicas that no longer do: they ended, have a newer attempt, or their runner
-- died. Attempt 0: the call ended, whatever its attempt was. Also those that still run and are being settled, which the
-- second column says.
select w.ord, coalesce(c.state = 'STARTED' and c.call_attempt = w.call_attempt
                       and r.renewed_at + r.ttl_seconds * interval '1 second' > clock_timestamp(), false)
  from unnest(%(ordinals)b::int[], %(task_ids)b::uuid[], %(call_ids)b::text[], %(attempts)b::int[])
    as w(ord, task_id, call_id, call_attempt)
  left join calls c using (task_id, call_id)
  left join runners r on r.runner_id = c.runner_id
 where case when w.call_attempt = 0 then coalesce(c.state not in ('ACCEPTED', 'STARTED'), true)
            else c.state is distinct from 'STARTED' or c.call_attempt <> w.call_attempt
                 or coalesce(r.renewed_at + r.ttl_seconds * interval '1 second' <= clock_timestamp(), true)
                 or c.settling_since is not null end;

-- name: insert_effects
-- Gives calls the effect keys that no call has. Of two calls with one new key, the first one gets it. A concurrent
-- insert of the same key is waited for, and counts. A key that a call has is locked and not changed, so that nothing
-- deletes it before lock_effects.
insert into effects (digest, tenant, tool, scope, key, task_id, call_id, period, begun_at, ends_at)
select w.digest, w.tenant, w.tool, w.scope, w.key::jsonb, w.task_id, w.call_id,
       case when w.period_seconds = 0 then 0 else floor(extract(epoch from at) / w.period_seconds) end, at,
       case when w.period_seconds > 0 then at + w.period_seconds * interval '1 second' end
  from (select distinct on (u.digest) u.*, clock_timestamp() as at
          from unnest(%(digests)b::bytea[], %(tenants)b::text[], %(tools)b::text[], %(scopes)b::text[], %(keys)b::text[],
                      %(task_ids)b::uuid[], %(call_ids)b::text[], %(periods)b::double precision[]) with ordinality
                 as u(digest, tenant, tool, scope, key, task_id, call_id, period_seconds, ord)
         order by u.digest, u.ord) w
 order by w.digest
on conflict (digest) do update set round = excluded.round where false;

-- name: lock_effects
-- Locks and reads effects for the transaction that decides and writes.
select e.digest, e.task_id, e.call_id, e.period, e.round, e.is_unclear, e.begun_at, e.kept_fact,
       coalesce(e.ends_at <= clock_timestamp(), false), extract(epoch from clock_timestamp())::double precision,
       coalesce(e.undone_call = e.task_id || '/' || e.call_id, false),
       case when e.earlier->>'of' = e.task_id || '/' || e.call_id then e.earlier::text end, e.ends_at is not null
  from (select distinct digest from unnest(%(digests)b::bytea[]) as u(digest) order by digest) w
 cross join lateral (select * from effects k where k.digest = w.digest for no key update) e;

-- name: calls_with_effects
-- The records of calls that have effect keys, without their locks: a record that has ended never changes what it says
-- of the effect. A statement of its own after lock_effects: its snapshot must not be older than those locks.
select c.task_id, c.call_id, c.state, c.outcome, c.begun_before, coalesce(c.finished_at, c.started_at, c.accepted_at)
  from unnest(%(task_ids)b::uuid[], %(call_ids)b::text[]) as w(task_id, call_id)
  join calls c using (task_id, call_id);

-- name: take_effects
-- Gives calls effect keys that lock_effects has locked.
update effects e
   set task_id = w.task_id, call_id = w.call_id, period = w.period, round = w.round, is_unclear = w.is_unclear,
       kept_fact = null, earlier = nullif(w.earlier, '')::jsonb, begun_at = clock_timestamp(),
       ends_at = case when w.period_seconds > 0 then clock_timestamp() + w.period_seconds * interval '1 second' end
  from unnest(%(digests)b::bytea[], %(task_ids)b::uuid[], %(call_ids)b::text[], %(numbers)b::bigint[], %(rounds)b::int[],
              %(unclear)b::boolean[], %(periods)b::double precision[], %(earlier)b::text[])
    as w(digest, task_id, call_id, period, round, is_unclear, period_seconds, earlier)
 where e.digest = w.digest;

-- name: free_undone_effects
-- Frees the effect keys of calls that were undone, in the transaction that records the outcome of the compensation. A call
-- undoes only effects of its tenant, and a key that another call has got meanwhile stays with that one, unless it made the
-- same effect: both had one idempotency key.
with undone as materialized (
  select u.undone_task_id, u.undone_call_id, f.tenant, k.digest, nullif(k.idempotency_key, '') as idempotency_key
    from unnest(%(task_ids)b::uuid[], %(undone_task_ids)b::uuid[], %(undone_call_ids)b::text[])
      as u(task_id, undone_task_id, undone_call_id)
    join fences f on f.task_id = u.task_id
    left join effect_calls k on k.task_id = u.undone_task_id and k.call_id = u.undone_call_id
), wanted as materialized (
  select digest, tenant from undone where digest is not null
  union
  select e.digest, u.tenant from undone u join effects e on e.task_id = u.undone_task_id and e.call_id = u.undone_call_id
), held as materialized (
  select e.digest from wanted w join effects e on e.digest = w.digest and e.tenant = w.tenant
   order by e.digest for no key update of e
)
update effects e
   set undone_call = case when exists (
         select from undone u where (u.undone_task_id, u.undone_call_id) = (e.task_id, e.call_id)
             or u.idempotency_key = encode(substr(e.digest, 1, 20), 'hex') || '-' || e.period || '-' || e.round
       ) then e.task_id || '/' || e.call_id else e.undone_call end,
       earlier = case when not exists (
         select from undone u left join effect_calls k
                  on k.task_id = (e.earlier->>'task_id')::uuid and k.call_id = e.earlier->>'call_id'
          where (u.undone_task_id::text, u.undone_call_id) = (e.earlier->>'task_id', e.earlier->>'call_id')
             or u.idempotency_key = k.idempotency_key
       ) then e.earlier end
  from held h where e.digest = h.digest;

-- name: undone_keys
-- The idempotency keys of calls that are about to be undone, if their effects have keys.
select u.ord - 1, k.idempotency_key
  from unnest(%(tenants)b::text[], %(undone_task_ids)b::uuid[], %(undone_call_ids)b::text[])
       with ordinality as u(tenant, undone_task_id, undone_call_id, ord)
  join fences f on f.task_id = u.undone_task_id and f.tenant = u.tenant
  join effect_calls k on k.task_id = u.undone_task_id and k.call_id = u.undone_call_id
 where k.idempotency_key <> '';

-- name: note_effect_calls
-- Records calls with effect keys, after their records. A call that runs again keeps the key that it had, unless it gets
-- another one.
insert into effect_calls (task_id, call_id, digest, idempotency_key)
select * from unnest(%(task_ids)b::uuid[], %(call_ids)b::text[], %(digests)b::bytea[], %(idempotency_keys)b::text[])
on conflict (task_id, call_id) do update set idempotency_key = excluded.idempotency_key
 where excluded.idempotency_key <> '';

-- name: list_effects
-- One page of a tenant's calls with an effect key, the first accepted first. An effect whose record was
-- deleted with its task stands for its call.
with wanted as materialized (
  select e.* from unnest(%(keys)b::text[]) as k(key)
   cross join lateral (select * from effects f where f.key @> k.key::jsonb) e
   where e.tenant = %(tenant)b::text and %(tool)b::text in ('', e.tool)
  union all
  select * from effects
   where cardinality(%(keys)b::text[]) = 0 and tenant = %(tenant)b::text and %(tool)b::text in ('', tool)
), touching as (
  select e.tool, e.key::text, e.scope, c.task_id, c.call_id, c.state, c.outcome, c.begun_before, c.call_attempt, c.epoch,
         k.idempotency_key, c.accepted_at, c.started_at, c.finished_at,
         (c.task_id, c.call_id) = (e.task_id, e.call_id) as has_key, null as kept_fact
    from wanted e join effect_calls k using (digest) join calls c on c.task_id = k.task_id and c.call_id = k.call_id
  union all
  select e.tool, e.key::text, e.scope, e.task_id, e.call_id, null, null, false, 0, 0, '', e.begun_at, null, null, true, e.kept_fact
    from wanted e where e.kept_fact is not null
)
select * from touching
 where (accepted_at, task_id, call_id) > (%(after)b::timestamptz, %(after_task_id)b::uuid, %(after_call_id)b::text)
 order by accepted_at, task_id, call_id limit %(limit)b::int;

-- name: effects_of_task
-- The effect keys that a task's calls have. Locks them: a call of another task may be about to take one.
select e.digest, e.scope, e.call_id from effects e
 where e.task_id = %(task_id)b::uuid and e.kept_fact is null order by e.digest for no key update;

-- name: keep_effects
-- Keeps what is known of effects whose records are about to be deleted, until their periods end.
update effects e set kept_fact = w.fact
  from unnest(%(digests)b::bytea[], %(facts)b::text[]) as w(digest, fact) where e.digest = w.digest;

-- name: forget_effects
-- Deletes the effects of a task whose records are about to be deleted, except those with a period of their own.
delete from effects where digest = any(%(digests)b::bytea[]);

-- name: forget_ended_effects
-- Deletes a bounded number of effects whose period is over. One that a call still makes stays.
delete from effects where digest in (
  select e.digest from effects e left join calls c on c.task_id = e.task_id and c.call_id = e.call_id
   where e.ends_at <= clock_timestamp() and c.state is distinct from 'ACCEPTED' and c.state is distinct from 'STARTED'
   order by e.ends_at limit %(limit)b::int for no key update of e skip locked
);

-- name: begin_life
-- Begins a runner's life. Also ends the previous life of this process, so that other replicas need not wait for its
-- TTL.
with before as (update runners set ttl_seconds = 0 where runner_id = %(former_id)b::uuid)
insert into runners (runner_id, instance, ttl_seconds, machine_id, boot_id, namespaces, pid, start_ticks)
values (%(runner_id)b::uuid, %(instance)b::text, %(ttl_seconds)b::double precision, %(machine_id)b::text,
        %(boot_id)b::text, %(namespaces)b::text, %(pid)b::int, %(start_ticks)b::bigint);

-- name: renew_life
-- Renews a life. No row for a runner that is late: other replicas may have declared it dead, so it must not revive.
update runners set renewed_at = clock_timestamp()
 where runner_id = %(runner_id)b::uuid and renewed_at + ttl_seconds * interval '1 second' > clock_timestamp()
returning runner_id;

-- name: end_life
-- Ends a life in order: other replicas need not wait for the runner's STARTED calls.
update runners set ttl_seconds = 0 where runner_id = %(runner_id)b::uuid;

-- name: unproven_runners
-- Runners of this machine whose TTL has expired, without proof that they ended: those of the same boot and namespaces,
-- whose processes can be looked up, and those of an earlier boot, if the operator has named the machine. A runner with
-- this machine's name and another boot id that renewed after this boot began is on another machine with the same name.
-- A runner of this boot id with another machine name is on a copy of this machine that was made while it ran.
select runner_id, boot_id, pid, start_ticks
  from runners
 where ended_at is null and renewed_at + ttl_seconds * interval '1 second' <= clock_timestamp()
   and ((boot_id = %(boot_id)b::text and namespaces = %(namespaces)b::text and pid > 0
         and (machine_id = %(machine_id)b::text or '' in (machine_id, %(machine_id)b::text)))
     or (machine_id = %(machine_id)b::text and machine_id <> '' and boot_id not in ('', %(boot_id)b::text)
         and renewed_at < clock_timestamp() - %(uptime_seconds)b::double precision * interval '1 second'))
 order by renewed_at desc limit 200;

-- name: prove_ended
-- Records the proof that lives are over. It is never withdrawn.
update runners set ended_at = clock_timestamp(), ttl_seconds = 0
 where runner_id = any(%(runner_ids)b::uuid[]) and ended_at is null
returning runner_id;

-- name: forget_runners
-- Deletes old runners. A runner without a row counts as dead and can never be proven gone, so the row is kept while a
-- call in doubt names the runner.
delete from runners where runner_id in (
  select r.runner_id from runners r
   where r.renewed_at < clock_timestamp() - interval '7 days'
     and not exists (select from calls c where c.doubted_at is not null and c.runner_id = r.runner_id)
   limit 100 for update skip locked
);

-- name: insert_refusals
-- Stores refused writes. Not those of a forgotten task: they would be stored for ever.
insert into refusals (task_id, tenant, method, presented_epoch, current_epoch, holder)
select w.* from unnest(%(task_ids)b::uuid[], %(tenants)b::text[], %(methods)b::text[], %(presented)b::bigint[],
                       %(current)b::bigint[], %(holders)b::text[])
                as w(task_id, tenant, method, presented_epoch, current_epoch, holder)
 where not exists (select from fences f where f.task_id = w.task_id and f.forgotten_at is not null);

-- name: trim_refusals
-- Keeps the newest 500 refusals of each task: a stale writer that retries for ever must not fill the disk.
delete from refusals d
 using unnest(%(task_ids)b::uuid[]) as w(task_id)
 where d.task_id = w.task_id
   and d.refusal_id < (select n.refusal_id from refusals n where n.task_id = w.task_id
                        order by n.refusal_id desc offset 499 limit 1);

-- name: list_refusals
-- A task's refusals, newest first, for the task's tenant only.
select task_id::text, method, presented_epoch, current_epoch, holder, refused_at
  from refusals where task_id = %(task_id)b::uuid and tenant = %(tenant)b::text
 order by refusal_id desc limit 500;

-- name: forget_task
-- Marks a task as forgotten. Its fence stays, closed at its last claim.
update fences set forgotten_at = coalesce(forgotten_at, clock_timestamp())
 where task_id = %(task_id)b::uuid and closed;

-- name: forget_refusals
-- Deletes a task's refusals, of which there are about 500 at most.
delete from refusals where task_id = %(task_id)b::uuid;

-- name: forget_calls
-- Deletes a bounded number of a forgotten task's records. None of its calls runs, and none can be accepted any more.
delete from calls c
 using (select k.task_id, k.call_id from calls k join fences f using (task_id)
         where k.task_id = %(task_id)b::uuid and f.forgotten_at is not null
         order by k.call_id limit %(limit)b::int) old
 where c.task_id = old.task_id and c.call_id = old.call_id;

-- name: forgotten_tasks
-- Those of these tasks that are forgotten: the sweep deletes their workspaces.
select task_id, tenant from fences where task_id = any(%(task_ids)b::uuid[]) and forgotten_at is not null;

-- name: pin_source
-- Returns a row at the first contact with the source, for one replica. Replicas that come at the same time wait for it.
insert into pinned_sources (source) values (%(source)b) on conflict do nothing returning source;

-- name: pin_tools
-- Pins tools of a source, at the first contact or because an operator accepted them.
insert into tool_pins (source, tool, sha256, definition, accepted_by)
select %(source)b, w.tool, w.sha256, w.definition, %(accepted_by)b
  from unnest(%(tools)b::text[], %(hashes)b::text[], %(definitions)b::text[]) as w(tool, sha256, definition)
on conflict (source, tool) do update
   set sha256 = excluded.sha256, definition = excluded.definition, accepted_by = excluded.accepted_by,
       accepted_at = clock_timestamp();

-- name: pins_of
-- The pins of a source, with the definitions that operators are shown for comparison.
select tool, sha256, definition from tool_pins where source = %(source)b;

-- name: pinned_hashes
-- All accepted tools, for replicas that follow the acceptances of others.
select source, tool, sha256 from tool_pins where source = any(%(sources)b::text[]);
