-- Forks: new tasks that begin with a copy of another task's history.

-- name: pieces_of
-- The entries of a ledger without their bodies. Lengths are read from the rows' pointers.
select e.sequence, e.step, e.kind, octet_length(e.body)
  from tasks t join entries e using (task_id)
 where t.task_id = %(task_id)b::text::uuid and t.tenant = %(tenant)b
 order by e.sequence
 limit %(limit)b;

-- name: bodies_of
-- The bodies of some entries.
select sequence, body from entries
 where task_id = %(task_id)b::text::uuid and sequence = any(%(sequences)b::bigint[])
 order by sequence;

-- name: mark_fork
-- The columns in which a newly created fork differs from other new tasks.
update tasks
   set reason = case reason when 'SUBMITTED' then 'FORKED' else reason end, sequence = %(sequence)b, step = %(step)b, max_steps = %(max_steps)b,
       model_step = %(model_step)b, model_attempt = %(model_attempt)b,
       forked_from_task_id = %(from_task_id)b::text::uuid, forked_from_sequence = %(from_sequence)b,
       (effects_tree, effects_run) = (
         select coalesce(r.effects_tree, o.effects_tree, o.root_task_id), coalesce(run_of_source(r), o.effects_run)
           from tasks o
           left join tasks r on r.task_id = o.root_task_id
          where o.task_id = %(from_task_id)b::text::uuid)
 where task_id = %(task_id)b::text::uuid;

-- name: copy_entries
-- Copies entries of one task to another, after those that it has, without a claim. One statement, whatever their number;
-- the bodies do not leave the database. Returns how many it copied.
with copied as (
  insert into entries (task_id, sequence, tenant, epoch, claim_id, attempt, step, kind, actor, recorded_at, body)
  select %(task_id)b::text::uuid, %(after)b + k.place, e.tenant, 0, '', 1, e.step, e.kind, e.actor, now(), e.body
    from unnest(%(sequences)b::bigint[]) with ordinality as k(sequence, place)
    join entries e on e.task_id = %(from_task_id)b::text::uuid and e.sequence = k.sequence
  returning 1
)
select count(*) from copied;

-- name: begin_fork
-- The entries after the copy: the transition to QUEUED, and the fork's message.
insert into entries (task_id, sequence, tenant, epoch, claim_id, attempt, step, kind, actor, recorded_at, body)
select %(task_id)b::text::uuid, %(after)b + n.place, %(tenant)b, 0, '', 1, %(step)b, n.kind, n.actor, now(), n.body
  from unnest(%(kinds)b::bigint[], %(actors)b::text[], %(bodies)b::bytea[]) with ordinality as n(kind, actor, body, place);

-- name: prepare_fork
-- The id that a fork will have. A repeat of the same request gets the same id.
insert into prepared_forks as p (task_id, tenant, request_id, request_hash)
values (%(task_id)b::text::uuid, %(tenant)b, %(request_id)b, %(request_hash)b)
    on conflict (tenant, request_id, request_hash) do update set prepared_at = clock_timestamp()
returning p.task_id::text;

-- name: take_prepared
-- Runs in the transaction that creates the fork. A concurrent give-up of the id waits for it, or has happened before.
delete from prepared_forks
 where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b
   and request_id = %(request_id)b and request_hash = %(request_hash)b
returning task_id;

-- name: give_up_prepared
-- Gives up ids that no fork used in time. It is like the pruning of a task that was never granted, because the tool
-- service may have files under the id. Returns a row for each.
with given_up as (
  delete from prepared_forks
   where task_id in (select o.task_id from prepared_forks o
                      where o.prepared_at < clock_timestamp() - make_interval(secs => %(kept_seconds)b)
                      order by o.prepared_at limit %(limit)b for update skip locked)
  returning task_id, tenant, prepared_at
)
insert into prunings (task_id, tenant, root_task_id, epoch, claim_id, ended_at, actor, reason, entries_left, cleared_at)
select task_id, tenant, task_id, 0, '', prepared_at, %(actor)b, %(reason)b, 0, clock_timestamp()
  from given_up
returning 1;
