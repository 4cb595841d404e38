-- The statements of the model runner. Each locks at most the rows of its tasks, in the order of task_id.

-- name: begin_generations
-- Begins calls of newer attempts under an admitted claim: inserts the rows of new tasks, and writes those of others under
-- their locks, where it compares the fences. Returns the tasks of the calls that it began. It refuses nothing: what it left
-- out goes the way of lock_generations.
insert into generations as g (task_id, tenant, epoch, claim_id, step, attempt_number, state, runner_id, begun_epoch, sent_at)
select task_id, tenant, epoch, claim_id, step, attempt_number, case when sent_at = '' then 'ACCEPTED' else 'SENT' end,
       %(runner_id)b::uuid, epoch, nullif(sent_at, '')::timestamptz
  from unnest(%(task_ids)b::uuid[], %(tenants)b::text[], %(epochs)b::bigint[], %(claim_ids)b::text[], %(steps)b::int[],
              %(attempts)b::int[], %(sent_ats)b::text[])
    as w(task_id, tenant, epoch, claim_id, step, attempt_number, sent_at)
 order by task_id
on conflict (task_id) do update
   set epoch = excluded.epoch, claim_id = excluded.claim_id, step = excluded.step,
       attempt_number = excluded.attempt_number, state = excluded.state, runner_id = excluded.runner_id,
       begun_epoch = excluded.begun_epoch, sent_at = excluded.sent_at, ended = null, changed_on = current_date
 where (g.epoch < excluded.epoch or (g.epoch = excluded.epoch and g.claim_id = excluded.claim_id))
   and (g.step, g.attempt_number) < (excluded.step, excluded.attempt_number)
returning task_id;

-- name: ensure_generations
-- Inserts missing rows, because a missing row cannot be locked.
insert into generations (task_id, tenant)
select * from unnest(%(task_ids)b::uuid[], %(tenants)b::text[]) as w(task_id, tenant) order by task_id
on conflict (task_id) do nothing;

-- name: lock_generations
-- Locks the newest call of each task for the transaction that decides and writes. The caller knows by the last renewal
-- of a runner whether it is alive; a runner without a row is gone. The end of another call is not read: it may be large.
select g.task_id, g.epoch, g.claim_id, g.step, g.attempt_number, g.state, g.runner_id, coalesce(r.address, ''),
       r.renewed_at, g.begun_epoch, g.sent_at,
       case when g.step = w.step and g.attempt_number = w.attempt_number then g.ended end
  from (select * from unnest(%(task_ids)b::uuid[], %(steps)b::int[], %(attempts)b::int[])
            as u(task_id, step, attempt_number) order by task_id) w
 cross join lateral (select * from generations k where k.task_id = w.task_id for no key update) g
  left join lateral (select * from runners k where k.runner_id = g.runner_id) r on true;

-- name: write_generations
-- Writes rows that lock_generations has locked.
update generations g
   set epoch = w.epoch, claim_id = w.claim_id, step = w.step, attempt_number = w.attempt_number, state = w.state,
       runner_id = w.runner_id, begun_epoch = w.begun_epoch, sent_at = w.sent_at, ended = w.ended,
       changed_on = current_date
  from unnest(%(task_ids)b::uuid[], %(epochs)b::bigint[], %(claim_ids)b::text[], %(steps)b::int[], %(attempts)b::int[],
              %(states)b::text[], %(runner_ids)b::uuid[], %(begun_epochs)b::bigint[], %(sent_ats)b::timestamptz[],
              %(ends)b::bytea[])
    as w(task_id, epoch, claim_id, step, attempt_number, state, runner_id, begun_epoch, sent_at, ended)
 where g.task_id = w.task_id;

-- name: raise_fences
-- Raises the fences of rows that lock_generations has locked and whose call stays as it is: its end is not written again.
update generations g
   set epoch = w.epoch, claim_id = w.claim_id, changed_on = current_date
  from unnest(%(task_ids)b::uuid[], %(epochs)b::bigint[], %(claim_ids)b::text[]) as w(task_id, epoch, claim_id)
 where g.task_id = w.task_id;

-- name: mark_sent
-- The SENT mark of calls that had to wait. It must be durable before the request goes out. A call that is SENT by this
-- runner is the same mark, repeated after a lost answer.
with w as materialized (
  select * from unnest(%(ordinals)b::int[], %(task_ids)b::uuid[], %(steps)b::int[], %(attempts)b::int[],
                       %(sent_ats)b::timestamptz[])
    as u(ord, task_id, step, attempt_number, sent_at) order by task_id
), held as materialized (
  select w.ord, w.task_id, w.sent_at from w cross join lateral (
    select from generations g
     where g.task_id = w.task_id and g.step = w.step and g.attempt_number = w.attempt_number
       and g.runner_id = %(runner_id)b::uuid and g.state in ('ACCEPTED', 'SENT')
       for no key update
  ) c
)
update generations g set state = 'SENT', sent_at = held.sent_at, changed_on = current_date
  from held where g.task_id = held.task_id
returning held.ord;

-- name: finish_generations
-- Records the ends of calls that this runner makes. Compare-and-set: another replica may have declared a call lost. The
-- same end is the same write, repeated after a lost answer.
with w as materialized (
  select * from unnest(%(ordinals)b::int[], %(task_ids)b::uuid[], %(steps)b::int[], %(attempts)b::int[],
                       %(ends)b::bytea[])
    as u(ord, task_id, step, attempt_number, ended) order by task_id
), held as materialized (
  select w.ord, w.task_id, w.ended from w cross join lateral (
    select from generations g
     where g.task_id = w.task_id and g.step = w.step and g.attempt_number = w.attempt_number
       and g.runner_id = %(runner_id)b::uuid
       and (g.state in ('ACCEPTED', 'SENT') or (g.state = 'FINISHED' and g.ended = w.ended))
       for no key update
  ) c
)
update generations g set state = 'FINISHED', ended = held.ended, changed_on = current_date
  from held where g.task_id = held.task_id
returning held.ord;

-- name: give_up
-- Gives up calls of this runner that were not sent: any replica may take them over.
update generations g set runner_id = null
  from (select * from unnest(%(task_ids)b::uuid[]) as u(task_id) order by task_id) w
 where g.task_id = w.task_id and g.runner_id = %(runner_id)b::uuid and g.state = 'ACCEPTED';

-- name: read_elsewhere
-- Returns the end of a call if the row is still of this call; no end: another runner makes the call.
select ended from generations
 where task_id = %(task_id)b and step = %(step)b and attempt_number = %(attempt_number)b;

-- name: list_generations
-- The newest call of each task that had one, by id.
select task_id, tenant, step, attempt_number, sent_at from generations
 where task_id > %(after)b::uuid and step > 0 order by task_id limit %(most)b::int;

-- name: sweep_generations
-- Deletes rows that nothing has changed for days, some at a time. Such a row no longer fences or answers a call. The row
-- of a call whose runner is not forgotten stays: without it the next owner would begin the call again.
delete from generations where task_id in (
  select task_id from generations g
   where changed_on < current_date - %(days)b::int
     and (state = 'FINISHED' or not exists (select from runners r where r.runner_id = g.runner_id))
   order by changed_on limit %(most)b::int for update skip locked);

-- name: renew_runner
-- Begins or renews the life of this process.
insert into runners (runner_id, instance, host, address, ttl_seconds)
values (%(runner_id)b, %(instance)b, %(host)b, %(address)b, %(ttl_seconds)b)
on conflict (runner_id) do update set renewed_at = clock_timestamp();

-- name: read_renewals
-- Returns the last renewal of each runner.
select runner_id, renewed_at, ttl_seconds from runners;

-- name: replace_runners
-- Deletes the runner that served this address of this host before: this process has the port now, so the other is gone.
delete from runners where address = %(address)b and host = %(host)b and runner_id <> %(runner_id)b;

-- name: end_runner
-- Ends the life of this process: its calls are lost or free from now on.
delete from runners where runner_id = %(runner_id)b;

-- name: forget_runners
-- Deletes runners that stopped renewing long ago.
delete from runners where renewed_at < clock_timestamp() - interval '1 day';
