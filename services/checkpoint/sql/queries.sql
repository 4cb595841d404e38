-- The statements of the ledger. Lists are passed as arrays, one per column: one statement serves one row and a whole
-- batch. Names in braces stand for the columns of ../rows.py.

-- name: lock
-- Locks tasks, then the budgets of their roots, both in the order of their ids, the one order for all writers. Reads
-- `locked_at` under the locks, so that a task's times never go back. `stopped`: a stop of an operator covers the task.
with held as materialized (
  select t.* from tasks t
   where t.task_id = any(%(task_ids)b::uuid[])
   order by t.task_id
     for no key update of t
), money as materialized (
  select b.* from budgets b
   where b.root_task_id in (select root_task_id from held)
   order by b.root_task_id
     for no key update of b
)
select {locked}, clock_timestamp() as locked_at,
       exists (select from stops s
                where s.tool = '' and s.tenant in ('', held.tenant) and s.agent in ('', held.agent)
                  and s.queue in ('', held.queue)) as stopped,
       {locked_budget}
  from held join money using (root_task_id);

-- name: lock_timeout
-- Changes how long this transaction waits for the lock of a row.
select set_config('lock_timeout', %(lock_timeout)b::text, true);

-- part: appended_entries
-- The new entries of locked tasks.
  insert into entries ({entries.columns}, recorded_at)
  select {entries.values}, %(locked_at)b::timestamptz
    from (select %(entry_numbers)b::bigint[] as n) as one,
         unnest({entries.arrays}) with ordinality as c({entries.names}, i)

-- name: advance
-- Writes what each commit changes in locked tasks, and nothing of model calls and tool calls: the rows in ten columns,
-- and the entries. Half of the parameters of `write`, and no other table to open.
with advanced as (
  update tasks t
     set {advances.set}, updated_at = %(locked_at)b::timestamptz
    from (select %(numbers)b::bigint[] as n) as one,
         unnest({advances.arrays}) with ordinality as c({advances.names}, i)
   where t.task_id = c.task_id
)
{appended_entries};

-- name: write
-- Writes what a step changes in locked tasks: rows, entries, bills and budgets in one round trip. The numbers of all rows
-- travel as one array of two dimensions: n[i][1] is the first number of row i. Each array costs as much as many numbers.
with advanced as (
  update tasks t
     set {steps.set}, updated_at = %(locked_at)b::timestamptz
    from (select %(numbers)b::bigint[] as n) as one,
         unnest({steps.arrays}) with ordinality as c({steps.names}, i)
   where t.task_id = c.task_id
), appended as (
{appended_entries}
), billed as (
  insert into token_usage ({bills.columns}, settled_at)
  select {bills.values}, %(locked_at)b::timestamptz
    from (select %(bill_numbers)b::bigint[] as n) as one,
         unnest({bills.arrays}) with ordinality as c({bills.names}, i)
)
update budgets b
   set {budgets.set}
  from (select %(budget_numbers)b::bigint[] as n) as one,
       unnest({budgets.arrays}) with ordinality as c({budgets.names}, i)
 where b.root_task_id = c.root_task_id;

-- name: move
-- Writes what a transition changes besides. Transitions are rare compared with steps, so their columns do not widen the
-- statement of steps. Each transition adds a row to `changes`; 0007_feeds.sql says why its xid is the higher of two.
-- A task's xid that no transaction of this cluster can have had yet came with a copy from another cluster.
with moved as (
update tasks t
   set {moves.set},
       -- A new attempt has no result yet.
       result = case when {moves.attempt} > t.attempt then '' else coalesce(nullif(c.result, ''), t.result) end,
       result_json = coalesce(nullif(c.result_json, ''), t.result_json),
       deadline_at = coalesce(nullif(c.deadline_at, '')::timestamptz, t.deadline_at),
       -- A queued task that its line has not admitted waits; an ended one gives its slot back.
       starts_at = case when c.state <> 'QUEUED' then null
                        when t.source_at_most > 0 and t.exclusive_source is null then coalesce(t.starts_at, 'infinity')
                        else t.starts_at end,
       exclusive_source = case when c.ended and t.source_at_most > 0 then null else t.exclusive_source end,
       queued_at = case when c.state = 'QUEUED' then case when t.state = 'QUEUED' then t.queued_at
                                                          else %(locked_at)b::timestamptz end end,
       started_at = case when {moves.holds} then coalesce(t.started_at, %(locked_at)b::timestamptz) else t.started_at end,
       ended_at = case when c.ended then %(locked_at)b::timestamptz end,
       -- A pending ending keeps its reservation: else another coordinator would take it from the one that carries it
       -- out.
       offered_until = case when c.ending_state <> '' and not c.ended then t.offered_until end,
       change_xid = greatest(pg_current_xact_id(), case when t.change_xid < pg_snapshot_xmax(pg_current_snapshot())
                                                        then t.change_xid end),
       updated_at = %(locked_at)b::timestamptz
  from (select %(numbers)b::bigint[] as n) as one,
       unnest({moves.arrays}, %(result)b::bytea[], %(result_json)b::bytea[], %(deadline_at)b::text[], %(ended)b::boolean[])
         with ordinality
       as c({moves.names}, result, result_json, deadline_at, ended, i)
 where t.task_id = c.task_id
returning t.change_xid, t.tenant, t.task_id, t.sequence, t.state, t.reason,
          t.ending_state <> '' and t.ended_at is null as cancel_requested, t.updated_at,
          t.parent_task_id, t.ended_at, t.sub_agents
), notified as (
  insert into family_news (parent_task_id, parent_moved)
  select parent_task_id, false from moved where parent_task_id is not null and ended_at is not null
  union all
  select task_id, true from moved where sub_agents > 0
)
insert into changes (xid, tenant, task_id, sequence, state, reason, cancel_requested, changed_at)
select change_xid, tenant, task_id, sequence, state, reason, cancel_requested, updated_at from moved;

-- name: warn
-- Adds soft cap and budget warnings, among the entries just written, to `changes` with the present state of the task: a
-- transition of the same transaction comes after them. The xid is that of transitions; two warnings of one task have
-- the same.
with warned as (
  update tasks t
     set change_xid = greatest(pg_current_xact_id(), case when t.change_xid < pg_snapshot_xmax(pg_current_snapshot())
                                                          then t.change_xid end)
   where t.task_id = any(%(task_ids)b::text[]::uuid[])
  returning t.change_xid, t.tenant, t.task_id, t.state, t.ending_state <> '' as cancel_requested
)
insert into changes (xid, tenant, task_id, sequence, state, reason, cancel_requested, changed_at)
select w.change_xid, w.tenant, w.task_id, c.sequence, w.state, %(reason)b::text, w.cancel_requested,
       %(locked_at)b::timestamptz
  from unnest(%(task_ids)b::text[]::uuid[], %(sequences)b::bigint[]) as c(task_id, sequence)
  join warned w using (task_id)
 order by c.task_id, c.sequence;

-- name: escalate
-- Writes what a step of an escalation changes in waiting tasks. '' and 0: the queue and the priority stay.
update tasks t
   set wait = c.wait, wait_step_at = nullif(c.wait_step_at, '')::timestamptz,
       queue = coalesce(nullif(c.queue, ''), t.queue), priority = coalesce(nullif(c.priority, 0), t.priority),
       updated_at = %(locked_at)b::timestamptz
  from unnest(%(task_id)b::text[]::uuid[], %(wait)b::bytea[], %(wait_step_at)b::text[], %(queue)b::text[],
              %(priority)b::bigint[]) as c(task_id, wait, wait_step_at, queue, priority)
 where t.task_id = c.task_id;

-- name: plan_operator_wait
-- Stores an operator's wait in a locked task. The task's next transition to QUEUED begins the wait.
update tasks set operator_wait = %(operator_wait)b where task_id = %(task_id)b::text::uuid;

-- name: keep_start
-- Lets a queued task wait for its start time again, after an operator's wait. Its queued timeout runs from there.
update tasks
   set starts_at = %(starts_at)b::timestamptz, queued_at = %(starts_at)b::timestamptz,
       queued_until = %(starts_at)b::timestamptz + make_interval(secs => %(queued_seconds)b::float8)
 where task_id = %(task_id)b::text::uuid and state = 'QUEUED';

-- name: create_tasks
-- The unique (tenant, request_id) decides between two concurrent submits; the loser waits and finds the winner's row.
-- The indexes of live tasks of exclusive sources and of sources' runs work the same way. All timeouts of a task with a
-- later start run from that start, whether the client asked for it or a quota of the tenant delays the task.
insert into tasks as t ({new.columns}, sequence, change_xid, deadline_at, queued_until, starts_at, asked_start_at, queued_at)
select {new.values}, 2, pg_current_xact_id(), begin_at + make_interval(secs => timeout_seconds),
       begin_at + make_interval(secs => queued_seconds),
       case when begin_at > now() then begin_at when {new.source_at_most} > 0 then 'infinity' end,
       asked_start, begin_at
  from (select %(numbers)b::bigint[] as n) as one,
       unnest({new.arrays}, %(timeout_seconds)b::text[]::float8[], %(queued_seconds)b::text[]::float8[],
              %(held_seconds)b::text[]::float8[], %(start_time)b::text[]::timestamptz[])
         with ordinality
       as c({new.names}, timeout_seconds, queued_seconds, held_seconds, asked_start, i),
       lateral (select greatest(now() + make_interval(secs => held_seconds), asked_start) as begin_at) b
 order by i
on conflict do nothing
returning {shown};

-- name: create_ledgers
-- The first two entries of each new task: the spec, and the transition to QUEUED, which is the task's first change. Every
-- root has a budget row from the beginning, so that a reservation always finds it.
with notified as (
  insert into changes (xid, tenant, task_id, sequence, state, reason, cancel_requested, changed_at)
  select change_xid, tenant, task_id, sequence, state, reason, false, created_at from tasks
   where task_id = any(%(task_ids)b::text[]::uuid[])
), funded as (
  insert into budgets (root_task_id, tenant, max_tokens, max_nano_usd, is_default_cap)
  select * from unnest(%(root_ids)b::text[]::uuid[], %(root_tenants)b::text[], %(max_tokens)b::bigint[],
                       %(max_nano_usd)b::bigint[], %(is_default_cap)b::boolean[])
)
insert into entries (task_id, sequence, tenant, epoch, claim_id, attempt, step, kind, actor, recorded_at, body)
select e.task_id, e.sequence, e.tenant, 0, '', 1, 0, e.kind, 'checkpoint', now(), e.body
  from unnest(%(entry_task_ids)b::text[]::uuid[], %(sequences)b::bigint[], %(tenants)b::text[], %(kinds)b::bigint[],
              %(bodies)b::bytea[]) as e(task_id, sequence, tenant, kind, body);

-- name: add_words
-- Adds words by which a search finds tasks: those of the goal, then those of each result.
insert into task_texts as x (task_id, words)
select * from unnest(%(task_ids)b::text[]::uuid[], %(words)b::text[]::tsvector[])
on conflict (task_id) do update set words = x.words || excluded.words;

-- name: find_request
-- The task that a request id created.
select task_id::text, request_hash from tasks where tenant = %(tenant)b and request_id = %(request_id)b;

-- name: find_source_run
-- The task of a source's run.
select task_id::text, request_hash from tasks
 where tenant = %(tenant)b and source_kind = %(source_kind)b::text and source_id = %(source_id)b::text
   and source_run_id = %(source_run_id)b::text and source_run_id <> '';

-- name: is_repeat
-- A row when the request id or the source's run was used before.
select from tasks where tenant = %(tenant)b and request_id = %(request_id)b
 union all
select from tasks
 where tenant = %(tenant)b and source_kind = %(source_kind)b::text and source_id = %(source_id)b::text
   and source_run_id = %(source_run_id)b::text and source_run_id <> ''
 limit 1;

-- name: find_exclusive
-- The live task of an exclusive source.
select task_id::text from tasks
 where tenant = %(tenant)b and exclusive_source = %(exclusive_source)b::text and ended_at is null;

-- name: find_rival
-- The live task of an ended task's source, if the source is exclusive.
select o.task_id::text
  from tasks t join tasks o on o.tenant = t.tenant and o.exclusive_source = t.exclusive_source
 where t.task_id = %(task_id)b::text::uuid and o.task_id <> t.task_id and o.ended_at is null;

-- part: shown_tasks
-- Task rows as callers see them. The spec comes from the first entry, its only place.
select {shown}, f.body,
       array(select o.body from task_outputs o where o.task_id = t.task_id and o.kind <> ''
              order by split_part(o.call_id, '.', 1)::bigint, split_part(o.call_id, '.', 2)::bigint),
       {budget}
  from tasks t
  join budgets b using (root_task_id)
  join entries f on f.task_id = t.task_id and f.sequence = 1

-- name: tasks_by_id
-- Several, in the order of the ids.
{shown_tasks}
  join unnest(%(task_ids)b::text[]::uuid[]) with ordinality as asked(task_id, place) on asked.task_id = t.task_id
 where t.tenant = %(tenant)b
 order by asked.place;

-- name: task_by_id
-- One, by value: Postgres opens one partition of the entries, and not all.
{shown_tasks}
 where t.task_id = %(task_id)b::text::uuid and t.tenant = %(tenant)b;

-- part: entries_after
-- The entries after one sequence up to another. Lengths are read from the rows' pointers, so that entries beyond the
-- limit are not read.
select sequence, epoch, claim_id, attempt, step, actor, recorded_at, body
  from (select e.*, sum(octet_length(e.body)) over (order by e.sequence) - octet_length(e.body) as bytes_before
          from entries e
         where e.task_id = %(task_id)b::text::uuid and e.sequence > %(after)b and e.sequence <= %(until)b

-- part: page
-- Limited by a sum of bytes, at least one.
         order by e.sequence
         limit %(page_size)b) p
 where bytes_before < %(page_bytes)b
 order by sequence

-- name: page_of_entries
-- Entries of all kinds.
{entries_after} {page};

-- name: page_of_kinds
-- Of some kinds. A statement of its own: the other one is read at each open.
{entries_after} and e.kind = any(%(kinds)b::smallint[]) {page};

-- name: foreign_entries
-- Entries of several tasks at once: external entries for their owners, and the first pages of opened tasks. The caller
-- compares counts and finds the ranges that were cut.
select r.ord, e.sequence, e.epoch, e.claim_id, e.attempt, e.step, e.actor, e.recorded_at, e.body
  from unnest(%(ords)b::bigint[], %(task_ids)b::text[]::uuid[], %(afters)b::bigint[], %(untils)b::bigint[])
       as r(ord, task_id, after, until)
 cross join lateral (
       select * from (
         select f.*, sum(octet_length(f.body)) over (order by f.sequence) - octet_length(f.body) as bytes_before
           from entries f
          where f.task_id = r.task_id and f.sequence > r.after and f.sequence <= r.until
          order by f.sequence
          limit %(most_entries)b) g
        where bytes_before < %(most_bytes)b) e
 order by r.ord, e.sequence;

-- name: newest_answers
-- The newest answers of the model, for the partial result of a task that the ledger itself ends; each with the
-- compaction entry that follows directly, if there is one.
select e.body, c.body from entries e
  left join entries c on c.task_id = e.task_id and c.sequence = e.sequence + 1 and c.kind = %(compaction)b
 where e.task_id = %(task_id)b::text::uuid and e.kind = %(kind)b
 order by e.sequence desc limit 16;

-- name: task_place
-- The end of a task's ledger, for its own tenant.
select sequence, state from tasks where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b;

-- name: root_of
-- The root, whose budget the task uses.
select root_task_id::text from tasks where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b;

-- name: places
-- The ends of several ledgers and whether the tasks have ended: the backstop of all watchers in one statement.
select task_id::text, sequence, ended_at is not null from tasks where task_id = any(%(task_ids)b::text[]::uuid[]);

-- name: steer
-- The worker for a task that an operator transfers. Not part of the statement that requeues, because transfers are
-- rare.
update tasks set steered_from = %(steered_from)b, steered_to = %(steered_to)b,
       steered_until = now() + make_interval(secs => %(seconds)b)
 where task_id = %(task_id)b::text::uuid;

-- name: offer_endings
-- Pending endings that a coordinator must carry out now, disjoint among coordinators like offers. Tasks that were
-- offered before come last: a task that cannot be ended now must not delay the others. The longer a task is due, the
-- longer it is reserved: one that cannot be ended, for example while its tool service is unreachable, is tried ever
-- more rarely.
with locked as (
  select t.task_id from tasks t
   where t.ended_at is null and t.ending_state <> ''
     and (t.state = 'QUEUED' or t.ending_at <= now() - make_interval(secs => %(grace_seconds)b))
     and (t.offered_until is null or t.offered_until < now())
   order by t.offered_until nulls first, t.ending_at
   limit %(limit)b
   for no key update of t skip locked
)
update tasks t set offered_until = now() + make_interval(secs => least(
         greatest(%(reserve_seconds)b, extract(epoch from now() - t.ending_at)::float8 / 2), %(most_seconds)b))
  from locked where t.task_id = locked.task_id
returning t.task_id::text, t.tenant, t.ending_state, t.ending_reason, t.ending_message, t.attempt, t.ending_at;

-- name: aging_oldest
-- A page of live tasks, the oldest first. State by state, each in the order of its index.
select found.* from unnest(%(states)b::text[]) as s(name)
 cross join lateral (
       select c.task_id::text, c.state, c.reason, c.queue, c.loop, c.owner, c.attempt, c.step, c.epoch,
              c.ending_state <> '' as ending, c.created_at, c.updated_at, c.deadline_at, c.next_retry_at,
              c.created_at::text as place
         from tasks c
        where c.tenant = %(tenant)b and c.state = s.name and c.state <> '' and c.ended_at is null
          and (c.created_at, c.task_id) > (%(after)b::text::timestamptz, %(after_task_id)b::text::uuid)
        order by c.created_at, c.task_id
        limit %(limit)b) found
 order by found.created_at, found.task_id
 limit %(limit)b;

-- name: aging_held
-- A page of held tasks without a recent write, through the index that has only held tasks.
select t.task_id::text, t.state, t.reason, t.queue, t.loop, t.owner, t.attempt, t.step, t.epoch, t.ending_state <> '',
       t.created_at, t.updated_at, t.deadline_at, t.next_retry_at, t.created_at::text
  from tasks t
 where t.holds and t.tenant = %(tenant)b and t.task_id > %(after_task_id)b::text::uuid
   and t.updated_at <= now() - make_interval(secs => %(idle_seconds)b)
 order by t.task_id limit %(limit)b;

-- name: register_grants
-- One statement for all: each claim becomes a grant or is left out. A repeat finds its own row. Registers only epochs
-- of the ledger's own generation: a coordinator that was frozen during a restore is too late for all tasks, not only
-- for those granted again, and no caller can use up the epochs of later generations. A claim has one epoch: the
-- statement leaves out a claim that was granted or opened under another one, because the trigger of its row would
-- refuse the whole statement and harm the other claims. A task that a stop covers gets no grant.
with asked as (
  select * from unnest(%(task_ids)b::text[]::uuid[], %(epochs)b::bigint[], %(claim_ids)b::text[])
             as a(task_id, epoch, claim_id)
), held as materialized (
  select t.task_id, t.granted, t.granted_claim from tasks t join asked using (task_id) order by t.task_id
     for no key update of t
), registered as (
  update tasks t set granted = a.epoch, granted_claim = a.claim_id
    from asked a join held using (task_id)
   where t.task_id = a.task_id
     and (t.granted < a.epoch and a.claim_id not in (t.granted_claim, t.claim_id)
          or (t.granted = a.epoch and t.granted_claim = a.claim_id))
     and a.epoch >> 40 = (select generation from epochs)
     and not exists (select from stops s
                      where s.tool = '' and s.tenant in ('', t.tenant) and s.agent in ('', t.agent)
                        and s.queue in ('', t.queue))
  returning a.claim_id, a.epoch
), highest as (
  update epochs set highest_epoch = greatest(highest_epoch, (select max(epoch) from registered))
   where exists (select from registered)
)
select claim_id from registered;

-- name: inspect_claims
-- What the ledger knows about claims in etcd, in the caller's order.
select coalesce(t.granted_claim = a.claim_id, false), coalesce(t.state, ''),
       coalesce(t.holds and t.claim_id = a.claim_id, false)
  from unnest(%(task_ids)b::text[]::uuid[], %(claim_ids)b::text[]) with ordinality as a(task_id, claim_id, place)
  left join tasks t using (task_id)
 order by a.place;

-- name: list_running
-- Running tasks by id, through the index that has only those.
select t.task_id::text, t.claim_id, t.epoch, t.owner, t.updated_at, t.deaths from tasks t
 where t.holds and t.task_id > %(after_task_id)b::text::uuid
 order by t.task_id limit %(page_size)b;

-- name: due_retries
-- Tasks whose retry delay is over, by database time. Skips rows that another replica's sweep has locked.
select task_id::text from tasks
 where state = 'RETRY_SCHEDULED' and next_retry_at <= now()
 order by next_retry_at limit %(limit)b for no key update skip locked;

-- name: due_starts
-- Makes tasks claimable whose start time has come, by database time. Nothing else changes: the spec keeps the start
-- time. A task in the line of its source waits there from now on.
with due as (
  select task_id from tasks where starts_at <= now() order by starts_at limit %(limit)b for no key update skip locked
), started as (
  update tasks t set starts_at = case when t.source_at_most > 0 and t.exclusive_source is null then 'infinity'::timestamptz end
    from due where t.task_id = due.task_id
  returning t.task_id::text, t.tenant, t.source_kind, t.source_id, t.starts_at
), in_line as (
  insert into due_source_lines (tenant, source_kind, source_id)
  select distinct tenant, source_kind, source_id from started where starts_at is not null
)
select task_id from started;

-- name: due_queued
-- Tasks past their queued timeout.
select task_id::text from tasks
 where queued_until <= now() and ending_state = ''
 order by queued_until limit %(limit)b for no key update skip locked;

-- name: due_deadlines
-- Tasks past their deadline. The deadline does not run while a task waits for a person.
select task_id::text from tasks
 where ended_at is null and ending_state = '' and state <> 'WAITING_USER' and deadline_at <= now()
 order by deadline_at limit %(limit)b for no key update skip locked;

-- name: due_waits
-- Waits past their deadline, by database time. A pending ending closes its task's wait by itself.
select task_id::text from tasks
 where wait_deadline_at <= now()
 order by wait_deadline_at limit %(limit)b for no key update skip locked;

-- name: due_escalations
-- Waits whose next step is due, by database time.
select task_id::text from tasks
 where wait_step_at <= now()
 order by wait_step_at limit %(limit)b for no key update skip locked;

-- name: due_signals
-- Waits with a kept signal: the signal came while the wait was being committed, so that neither saw the other.
select t.task_id::text from tasks t
 where t.wait_correlation <> ''
   and exists (select from signals s
                where s.tenant = t.tenant and s.correlation_id = t.wait_correlation and s.taken_by is null)
 order by t.waiting_since limit %(limit)b for no key update of t skip locked;

-- name: keep_signal
-- Keeps a signal, unless it exists already or too many are kept under its correlation id or for its tenant. Two
-- concurrent signals may exceed a limit by one.
insert into signals (tenant, correlation_id, request_id, hash, actor, payload)
select %(tenant)b::text, %(correlation_id)b::text, %(request_id)b::text, %(hash)b::bytea, %(actor)b::text,
       %(payload)b::bytea
 where (select count(*) from (select from signals where tenant = %(tenant)b::text
                                 and correlation_id = %(correlation_id)b::text and taken_by is null
                               limit %(most)b) kept) < %(most)b
   and (select count(*) from (select from signals where tenant = %(tenant)b::text and taken_by is null
                               limit %(most_of_tenant)b) kept) < %(most_of_tenant)b
on conflict do nothing
returning position;

-- name: find_signal
-- The digest of the signal with a request id, and the task that took it.
select hash, taken_by::text from signals
 where tenant = %(tenant)b::text and correlation_id = %(correlation_id)b::text and request_id = %(request_id)b::text;

-- name: take_signal
-- The oldest kept signal of a correlation id that no other transaction has locked. Runs under the lock of the task that
-- takes it.
update signals s set taken_by = %(task_id)b::text::uuid
 where (s.tenant, s.correlation_id, s.request_id) = (
         select k.tenant, k.correlation_id, k.request_id from signals k
          where k.tenant = %(tenant)b::text and k.correlation_id = %(correlation_id)b::text and k.taken_by is null
          order by k.position limit 1 for update skip locked)
returning payload, actor, request_id;

-- name: waiting_for
-- The task that has waited longest for a signal of this correlation id.
select task_id::text from tasks
 where tenant = %(tenant)b::text and wait_correlation = %(correlation_id)b::text and wait_correlation <> ''
 order by waiting_since limit 1;

-- name: forget_signals
-- Deletes old signals, taken or not: a later repeat counts as a new signal.
delete from signals s
 using (select tenant, correlation_id, request_id from signals
         where received_at < now() - make_interval(secs => %(kept_seconds)b)
         order by received_at limit %(limit)b for update skip locked) old
 where (s.tenant, s.correlation_id, s.request_id) = (old.tenant, old.correlation_id, old.request_id)
returning 1;

-- name: find_foreign
-- The digest of the external entry with a request id. Read under the task's lock.
select hash from foreign_requests where task_id = %(task_id)b::text::uuid and request_id = %(request_id)b;

-- name: remember_foreign
-- Runs in the transaction that appends the external entry: a repeat finds both or neither.
insert into foreign_requests (task_id, request_id, tenant, hash, sequence)
values (%(task_id)b::text::uuid, %(request_id)b, %(tenant)b, %(hash)b, %(sequence)b);

-- name: get_epochs
-- The only row.
select generation, highest_epoch from epochs;

-- name: raise_generation
-- Compare-and-set. `expected` may be ahead of the ledger: a ledger restored from a backup must pass etcd's generation.
-- The new generation is above that of every registered epoch, and never exceeds the last generation that an epoch can
-- have. A caller far ahead of the ledger is refused: its etcd is broken, and the generations in between would be lost.
update epochs set generation = greatest(%(expected)b::bigint, highest_epoch >> 40) + 1
 where generation <= %(expected)b::bigint
   and %(expected)b::bigint <= generation + %(max_jump)b::bigint
   and greatest(%(expected)b::bigint, highest_epoch >> 40) < %(max_generation)b::bigint
returning generation;

-- name: record_refusals
-- Stores refused writes. Each task keeps its newest, so that a faulty worker cannot fill the disk. Only for tasks that
-- exist, under a lock that no commit waits for: a task that is being pruned must get no new rows.
with known as materialized (
  select t.task_id from tasks t
   where t.task_id = any(%(task_ids)b::text[]::uuid[]) order by t.task_id for key share
), added as (
  insert into refusals (task_id, tenant, method, presented_epoch, current_epoch, holder, refused_at)
  select r.* from unnest(%(task_ids)b::text[]::uuid[], %(tenants)b::text[], %(methods)b::text[], %(presented)b::bigint[],
                         %(current)b::bigint[], %(holders)b::text[], %(times)b::text[]::timestamptz[])
                  as r(task_id, tenant, method, presented, current, holder, refused_at)
    join known using (task_id)
  returning task_id
)
delete from refusals r
 using (select distinct task_id from added) a
 where r.task_id = a.task_id
   and r.refusal_id <= (select o.refusal_id from refusals o where o.task_id = a.task_id
                         order by o.refusal_id desc offset %(kept)b limit 1);

-- name: page_of_bills
-- The bills of a task's model attempts, by the primary key; the usage before a report comes last.
select u.step, u.attempt_number,
       u.input_tokens, u.output_tokens, u.cache_creation_input_tokens, u.cache_read_input_tokens, u.lost, u.model,
       u.provider_request_id, u.epoch, u.root_task_id::text, u.settled_at, u.nano_usd, u.unpriced,
       r.estimated_input_tokens, r.estimated_output_tokens, r.estimated_cache_creation_input_tokens,
       r.estimated_cache_read_input_tokens
  from token_usage u
  left join usage_reports r using (task_id, step, attempt_number)
 where u.task_id = %(task_id)b::text::uuid
   and (u.step, u.attempt_number) > (%(after_step)b::bigint, %(after_attempt_number)b::bigint)
 order by u.step, u.attempt_number limit %(limit)b;

-- name: list_refusals
-- Newest first.
select method, presented_epoch, current_epoch, holder, refused_at from refusals
 where task_id = %(task_id)b::text::uuid
 order by refusal_id desc limit %(limit)b;

-- name: count_foreign
-- How many external entries a task has taken, its loop, and the definition of the agent or function that runs it: of its
-- revision, or for a task without one of the agent with that name.
select (select count(*) from foreign_requests f where f.task_id = t.task_id), t.loop, r.definition
  from tasks t
  left join agents a on a.tenant = t.tenant
                    and a.name = coalesce(nullif(t.agent, ''), split_part(substr(t.loop, 9), '@', 1))  -- 'control.'
  left join agent_revisions r on r.tenant = a.tenant and r.name = a.name
                             and r.revision = coalesce(nullif(t.agent_revision, 0), a.current_revision)
 where t.task_id = %(task_id)b::text::uuid;

-- name: notify
-- Notifies other replicas, in transactions of its own: inside commits, notifications were measured to halve the rate.
select pg_notify('tenure_ledger', payload) from unnest(%(payloads)b::text[]) as p(payload);

-- name: count_listeners
-- How many other sessions listen for notifications: one of each replica.
select count(*) from pg_stat_activity
 where datname = current_database() and application_name = %(listener)b::text and pid <> %(own_pid)b::bigint;

-- name: get_lease_grant
-- The last grant of a named lease, and how it was released.
select epoch, claim_id, holder, previous_epoch, request_id, reason, message, release_reason, release_message
  from lease_grants where tenant = %(tenant)b::text and resource = %(resource)b::text;

-- name: register_lease
-- Compare-and-set under the row's lock: a grant follows exactly the previous epoch that it names, and epochs only grow.
-- Without a row only a first grant is accepted. A repeat changes nothing and finds its own row. Accepts only epochs of
-- the ledger's generation, as for tasks.
insert into lease_grants as g (tenant, resource, epoch, claim_id, holder, previous_epoch, request_id, reason, message)
select %(tenant)b::text, %(resource)b::text, %(epoch)b::bigint, %(claim_id)b::text, %(holder)b::text,
       %(previous_epoch)b::bigint, %(request_id)b::text, %(reason)b::text, %(message)b::text
 where %(epoch)b::bigint >> 40 = (select generation from epochs)
   and (%(previous_epoch)b::bigint = 0
        or exists (select from lease_grants where tenant = %(tenant)b::text and resource = %(resource)b::text))
on conflict (tenant, resource) do update
   set epoch = excluded.epoch, claim_id = excluded.claim_id, holder = excluded.holder,
       previous_epoch = excluded.previous_epoch, request_id = excluded.request_id, reason = excluded.reason,
       message = excluded.message, granted_at = now(), release_reason = '', release_message = '', released_at = null
 where g.epoch = excluded.previous_epoch and g.epoch < excluded.epoch
returning epoch;

-- name: raise_highest_epoch
-- Records the highest epoch, so that an etcd that went back behind it is noticed.
update epochs set highest_epoch = %(epoch)b::bigint where highest_epoch < %(epoch)b::bigint;

-- name: note_lease_release
-- The first recorded reason stays.
update lease_grants
   set release_reason = %(reason)b::text, release_message = %(message)b::text, released_at = now()
 where tenant = %(tenant)b::text and resource = %(resource)b::text and claim_id = %(claim_id)b::text
   and release_reason = '';

-- name: inspect_leases
-- The claims in etcd that are the last grant of their lease.
select a.claim_id
  from unnest(%(tenants)b::text[], %(resources)b::text[], %(claim_ids)b::text[]) as a(tenant, resource, claim_id)
  join lease_grants g using (tenant, resource, claim_id);

-- name: feed
-- The id of the change feed, its end, and up to where it was pruned.
select feed_id::text, pruned_xid::text::bigint, pruned_position, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint
  from change_feed;

-- name: prune_changes
-- Deletes the oldest changes that need not be kept, a bounded number. One replica at a time: the others skip it.
-- Commits never touch this row and never wait for it. The same statement records the pruned position, so that an
-- earlier cursor is refused. By ctid, which is stable because a change is never updated: with a join by the key, the
-- planner may read the whole table.
with feed as materialized (
  select one from change_feed where leftover_position = 0 for update skip locked
), old as materialized (
  select o.place, o.xid, o.position
    from (select ctid as place, xid, position, changed_at from changes order by xid, position limit %(limit)b) o, feed
   where o.changed_at < now() - make_interval(secs => %(kept_seconds)b)
), gone as (
  delete from changes where ctid = any(array(select place from old))
), noted as (
  update change_feed f set pruned_xid = l.xid, pruned_position = l.position
    from (select xid, position from old order by xid desc, position desc limit 1) l
   where (f.pruned_xid, f.pruned_position) < (l.xid, l.position)
)
select count(*) from old;

-- name: clear_leftovers
-- Deletes a bounded number of changes of an earlier feed, along the index from where the last batch ended. One replica
-- at a time. Returns how many rows were read: fewer than the limit means that no leftovers remain.
with feed as materialized (
  select leftover_position, leftover_reached_xid, leftover_reached_position
    from change_feed where leftover_position > 0 for update skip locked
), walked as materialized (
  select c.place, c.xid, c.position, f.leftover_position
    from feed f, lateral (
      select ctid as place, xid, position from changes
       where (xid, position) > (f.leftover_reached_xid, f.leftover_reached_position)
       order by xid, position limit %(limit)b
    ) c
), gone as (
  delete from changes where ctid = any(array(select place from walked where position <= leftover_position))
), noted as (
  update change_feed f set leftover_reached_xid = l.xid, leftover_reached_position = l.position
    from (select xid, position from walked order by xid desc, position desc limit 1) l
   where (select count(*) from walked) >= %(limit)b
), ended as (
  update change_feed f set leftover_position = 0
    from feed where (select count(*) from walked) < %(limit)b
)
select count(*) from walked;

-- name: adopt_feed
-- A ledger that was copied into this cluster begins a new feed; returns a row when it did. Transactions of another
-- cluster numbered the old changes: a row of this transaction marks where their positions end, and clear_leftovers
-- deletes them. No effect the first time, when there are no old changes.
with here as (
  select system_identifier from pg_control_system()
), copied as materialized (
  select h.system_identifier from change_feed f, here h where f.cluster <> h.system_identifier for update of f
), mark as (
  insert into changes (xid, tenant, task_id, sequence, state, reason, cancel_requested, changed_at)
  select '0', '', '00000000-0000-0000-0000-000000000000', 1, 'QUEUED', '', false, now() from copied
  returning position
), begun as (
  update change_feed set cluster = c.system_identifier, feed_id = gen_random_uuid(), pruned_xid = '0', pruned_position = 0,
         leftover_position = m.position, leftover_reached_xid = '0', leftover_reached_position = 0
    from copied c, mark m returning feed_id
), marked as (
  update change_feed f set cluster = h.system_identifier from here h where f.cluster is null
)
select feed_id::text from begun;
