-- The statements of the export of traces. None of them locks a task.

-- name: begin
-- Traces begin with the changes from now on: changes below the oldest running transaction are in the past.
insert into trace_feed (feed_id, xid, position)
select f.feed_id, pg_snapshot_xmin(pg_current_snapshot()), 0 from change_feed f
on conflict do nothing;

-- name: take_lease
-- A row: this replica exports from now on.
update trace_feed
   set lease_number = lease_number + 1, leased_until = clock_timestamp() + make_interval(secs => %(lease_seconds)b),
       holder = %(holder)b
 where one and leased_until <= clock_timestamp()
returning lease_number;

-- name: keep_lease
-- The fence, as in all following statements: no row means that another replica exports since.
update trace_feed set leased_until = clock_timestamp() + make_interval(secs => %(lease_seconds)b)
 where one and lease_number = %(lease)b
returning feed_id::text, xid::text::bigint, position;

-- name: end_lease
-- Another replica may begin at once.
update trace_feed set leased_until = '-infinity' where one and lease_number = %(lease)b returning lease_number;

-- name: make_known_due
-- A page of the tasks that traces know becomes due; the id of its last task, or NULL after the last page.
with page as materialized (
  select task_id from traced_tasks where task_id > %(after)b::text::uuid order by task_id limit %(limit)b
), made_due as (
  update traced_tasks c set is_due = true from page where c.task_id = page.task_id and not c.is_due
)
select (select max(task_id::text) from page) from trace_feed where one and lease_number = %(lease)b;

-- name: read_changes
-- The next page of all tenants, in the order of the feed, with the columns of changes_after.
with page as (
  select c.* from changes c
   where (c.xid, c.position) > (%(xid)b::bigint::text::xid8, %(position)b::bigint)
     and c.xid < pg_snapshot_xmin(pg_current_snapshot())
   order by c.xid, c.position
   limit %(page_size)b
)
select f.feed_id::text, f.pruned_xid::text::bigint, f.pruned_position,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       false as held_back,
       p.xid::text::bigint, p.position, p.task_id::text, p.sequence, p.state, p.reason, p.cancel_requested, p.changed_at,
       true as fits
  from change_feed f
  left join page p on true
 order by p.xid, p.position;

-- name: note_changes
-- Moves the cursor from where this replica read it, and makes the tasks due.
with moved as (
  update trace_feed
     set feed_id = %(to_feed_id)b::text::uuid, xid = %(to_xid)b::bigint::text::xid8, position = %(to_position)b,
         read_at = clock_timestamp()
   where one and lease_number = %(lease)b and feed_id = %(feed_id)b::text::uuid
     and xid = %(xid)b::bigint::text::xid8 and position = %(position)b
  returning lease_number
), made_due as (
  insert into traced_tasks (task_id)
  select c.task_id::uuid from moved, unnest(%(task_ids)b::text[]) as c(task_id)
  on conflict (task_id) do update set is_due = true
)
select lease_number from moved;

-- name: due
-- Tasks with entries that are not exported, and those that need not be looked at any more.
select c.task_id::text, c.sequence, coalesce(t.sequence, 0), t.root_task_id::text, t.tenant, coalesce(t.holds, false),
       t.task_id is null
  from traced_tasks c left join tasks t using (task_id)
 where c.is_due and c.task_id > %(after)b::text::uuid and (t.task_id is null or t.sequence > c.sequence or not t.holds)
 order by c.task_id
 limit %(limit)b;

-- name: note_exported
-- A task that no worker has is not looked at again before its next change. While an export waited for the collector,
-- changes were read that came after the entries that it has: these tasks stay due.
with held as materialized (
  select lease_number from trace_feed where one and lease_number = %(lease)b for no key update
), noted as (
  update traced_tasks c set sequence = e.sequence,
         is_due = e.is_due or exists (
           select from tasks t where t.task_id = c.task_id and (t.sequence > e.sequence or t.holds))
    from held, unnest(%(task_ids)b::text[]::uuid[], %(sequences)b::bigint[], %(dues)b::boolean[])
         as e(task_id, sequence, is_due)
   where c.task_id = e.task_id
)
select lease_number from held;

-- name: forget_pruned
-- Their entries are gone.
with held as materialized (
  select lease_number from trace_feed where one and lease_number = %(lease)b for no key update
), forgotten as (
  delete from traced_tasks c using held where c.task_id = any(%(task_ids)b::text[]::uuid[])
)
select lease_number from held;
