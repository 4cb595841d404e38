-- The statements of webhooks. Every change of a webhook's deliveries holds the lock of its row: so its counts match its
-- deliveries, and their ordinals ascend. No task is locked meanwhile.

-- name: lock_tenant
-- Creations of webhooks of one tenant wait here for each other.
select pg_advisory_xact_lock(hashtextextended('webhooks of ' || %(tenant)b::text, 0));

-- name: count
-- By the unique index on (tenant, name).
select count(*) from webhooks where tenant = %(tenant)b;

-- name: create
-- The webhook reads the feed from now on: changes below the oldest running transaction are in the past.
insert into webhooks (webhook_id, tenant, name, request_hash, kind, url, email_addresses, event_types, filter, secret,
                      answer_links, feed_id, xid, position)
select %(webhook_id)b::text::uuid, %(tenant)b, %(name)b, %(request_hash)b, %(kind)b, %(url)b, %(email_addresses)b::text[],
       %(event_types)b::text[], %(filter)b, %(secret)b, %(answer_links)b, f.feed_id, pg_snapshot_xmin(pg_current_snapshot()), 0
  from change_feed f;

-- part: read
-- The columns of WebhookRow.
select {webhook}, case when w.old_secret_until > clock_timestamp() then w.old_secret end
  from webhooks w

-- name: find
-- One webhook of a tenant, by its id or its name.
{read}
 where w.tenant = %(tenant)b
   and (w.webhook_id = nullif(%(webhook_id)b::text, '')::uuid or w.name = nullif(%(name)b::text, ''));

-- name: lock
-- The same, locked.
{read}
 where w.tenant = %(tenant)b
   and (w.webhook_id = nullif(%(webhook_id)b::text, '')::uuid or w.name = nullif(%(name)b::text, ''))
   for no key update;

-- name: list
-- A page by name.
{read}
 where w.tenant = %(tenant)b and w.name > %(after_name)b
 order by w.name
 limit %(page_size)b;

-- name: gaps
-- The newest gaps of each webhook.
select g.webhook_id::text, g.reason, g.from_at, g.to_at, g.from_cursor, g.to_cursor
  from unnest(%(webhook_ids)b::text[]::uuid[]) as w(webhook_id),
       lateral (select * from webhook_gaps n where n.webhook_id = w.webhook_id order by n.found_at desc limit %(limit)b) g
 order by g.webhook_id, g.found_at desc;

-- name: held
-- How many deliveries of each webhook wait for the tenant's quota, by the index of held deliveries.
select webhook_id::text, count(*) from webhook_deliveries
 where webhook_id = any(%(webhook_ids)b::text[]::uuid[]) and hold_reason <> ''
 group by webhook_id;

-- name: pause
-- No replica takes a sender lease any more; results of requests in flight may still be recorded.
update webhooks
   set paused = true, pause_code = %(code)b, pause_reason = %(reason)b, pause_actor = %(actor)b, updated_at = clock_timestamp()
 where webhook_id = %(webhook_id)b::text::uuid and not paused;

-- name: resume
-- Sends at once, even if the endpoint asked for a later time.
update webhooks
   set paused = false, pause_code = '', pause_reason = '', pause_actor = '', hold_until = '-infinity', problem = '',
       updated_at = clock_timestamp()
 where webhook_id = %(webhook_id)b::text::uuid and paused;

-- name: rotate
-- Keeps the old secret for the overlap.
update webhooks
   set old_secret = secret, old_secret_until = clock_timestamp() + make_interval(secs => %(overlap_seconds)b),
       secret = %(secret)b, updated_at = clock_timestamp()
 where webhook_id = %(webhook_id)b::text::uuid;

-- name: sealed_secrets
-- A page of webhooks with secrets, of all tenants.
select webhook_id::text, tenant, secret, old_secret
  from webhooks where webhook_id > %(after)b::text::uuid and kind <> 'EMAIL' order by webhook_id limit %(limit)b;

-- name: seal_again
-- Replaces the seals, unless the secrets have changed meanwhile. Returns a row if it did.
update webhooks set secret = %(secret)b, old_secret = %(old_secret)b
 where webhook_id = %(webhook_id)b::text::uuid and secret = %(former)b and old_secret is not distinct from %(former_old)b
returning 1;

-- name: delete
-- Also deletes deliveries and gaps, by the foreign keys.
delete from webhooks where webhook_id = %(webhook_id)b::text::uuid;

-- name: due_webhooks
-- Webhooks with work and without a sender lease: the one of each tenant that has waited longest, then the second of each,
-- and so on. Work is: a due delivery, an unread change, or a cursor that grows old although nothing happened. `now()` is
-- stable and so usable by the index, where thousands may wait for a later time.
select due.webhook_id::text, due.tenant
  from (select w.webhook_id, w.tenant, w.leased_until,
               row_number() over (partition by w.tenant order by w.leased_until) as place
          from webhooks w
         where not w.paused and w.leased_until <= clock_timestamp()
           and (   (w.hold_until <= clock_timestamp()
                    and exists (select from webhook_deliveries d
                                 where d.webhook_id = w.webhook_id and d.next_attempt_at <= now()))
                or (w.pending < %(most_pending)b
                    and (   w.read_at < clock_timestamp() - make_interval(secs => %(refresh_seconds)b)
                         or exists (select from changes c
                                     where c.tenant = w.tenant and (c.xid, c.position) > (w.xid, w.position)
                                       and c.xid < pg_snapshot_xmin(pg_current_snapshot())))))) due
 order by due.place, due.leased_until
 limit %(limit)b;

-- name: take_leases
-- Each webhook for one replica at a time. Another replica may have found the same.
with due as materialized (
  select w.webhook_id from webhooks w
   where w.webhook_id = any(%(webhook_ids)b::text[]::uuid[]) and not w.paused and w.leased_until <= clock_timestamp()
     for no key update of w skip locked
)
update webhooks w
   set lease_number = w.lease_number + 1, leased_until = clock_timestamp() + make_interval(secs => %(lease_seconds)b)
  from due where w.webhook_id = due.webhook_id
returning w.webhook_id::text, w.tenant, w.lease_number;

-- name: keep_lease
-- The fence, as in all following statements: no row means that another replica took the sender lease since, or that the
-- webhook is paused or deleted.
update webhooks w set leased_until = clock_timestamp() + make_interval(secs => %(lease_seconds)b)
 where w.webhook_id = %(webhook_id)b::text::uuid and w.lease_number = %(lease)b and not w.paused
returning w.event_types, w.filter, w.feed_id::text, w.xid::text::bigint, w.position, w.pending,
          w.hold_until > clock_timestamp(), cardinality(w.email_addresses), w.name, w.kind;

-- name: end_lease
-- The next sender lease may begin at once. Keeps the newest of the received deliveries.
with held as materialized (
  select webhook_id from webhooks
   where webhook_id = %(webhook_id)b::text::uuid and lease_number = %(lease)b
     for no key update
), forgotten as (
  delete from webhook_deliveries d using held
   where d.webhook_id = held.webhook_id and d.state = 'DELIVERED'
     and d.ordinal < (select n.ordinal from webhook_deliveries n
                       where n.webhook_id = %(webhook_id)b::text::uuid and n.state = 'DELIVERED'
                       order by n.ordinal desc offset %(kept)b limit 1)
)
update webhooks w set leased_until = clock_timestamp() from held where w.webhook_id = held.webhook_id
returning w.lease_number;

-- name: move_cursor
-- Moves the cursor from where this sender lease read it: a replica that was frozen during another's lease moves
-- nothing.
update webhooks
   set feed_id = %(to_feed_id)b::text::uuid, xid = %(to_xid)b::bigint::text::xid8, position = %(to_position)b,
       read_at = clock_timestamp(), pending = pending + %(written)b
 where webhook_id = %(webhook_id)b::text::uuid and lease_number = %(lease)b and feed_id = %(feed_id)b::text::uuid
   and xid = %(xid)b::bigint::text::xid8 and position = %(position)b
returning read_at;

-- name: write_deliveries
-- In order. The first delivery of a line is due at once when no delivery of that line is pending.
insert into webhook_deliveries (webhook_id, delivery_id, event_type, line, sequence, body, next_attempt_at)
select %(webhook_id)b::text::uuid, e.delivery_id::uuid, e.event_type, e.line, e.sequence, e.body,
       case when row_number() over (partition by e.line order by e.number) = 1
             and not exists (select from webhook_deliveries d
                              where d.webhook_id = %(webhook_id)b::text::uuid and d.line = e.line and d.state = 'PENDING')
            then clock_timestamp() end
  from unnest(%(delivery_ids)b::text[], %(event_types)b::text[], %(lines)b::text[], %(sequences)b::bigint[], %(bodies)b::text[])
       with ordinality as e(delivery_id, event_type, line, sequence, body, number)
 order by e.number;

-- name: unsent_summary
-- The summary that further late changes are added to.
select delivery_id::text, body from webhook_deliveries
 where webhook_id = %(webhook_id)b::text::uuid and line = %(line)b and state = 'PENDING' and attempts = 0
   and sent_under_lease is null
 order by ordinal desc limit 1;

-- name: hold_summary
-- Writes the present text of a summary, which waits for further changes. Behind another summary it has no time yet.
update webhook_deliveries
   set body = %(body)b,
       next_attempt_at = case when next_attempt_at is not null
                              then clock_timestamp() + make_interval(secs => %(wait_seconds)b) end
 where webhook_id = %(webhook_id)b::text::uuid and delivery_id = %(delivery_id)b::text::uuid;

-- name: sub_agents_by_state
-- Of trees, by the index on the root.
select root_task_id::text, state, count(*)
  from tasks where root_task_id = any(%(root_task_ids)b::text[]::uuid[]) and depth > 0
 group by root_task_id, state order by root_task_id, state;

-- name: escalations
-- The steps of escalations that changes report.
select e.task_id::text, e.sequence, e.body
  from unnest(%(task_ids)b::text[]::uuid[], %(sequences)b::bigint[]) as c(task_id, sequence)
  join entries e on e.task_id = c.task_id and e.sequence = c.sequence;

-- name: record_gap
-- The changes that could not be read.
insert into webhook_gaps (webhook_id, reason, from_at, to_at, from_cursor, to_cursor)
select w.webhook_id, %(reason)b, w.read_at,
       coalesce(case when %(reason)b::text = 'EXPIRED'
                     then (select changed_at from changes order by xid, position limit 1) end, now()),
       %(from_cursor)b, %(to_cursor)b
  from webhooks w where w.webhook_id = %(webhook_id)b::text::uuid and w.lease_number = %(lease)b
returning from_at, to_at;

-- name: forget_old_gaps
-- Keeps the newest.
delete from webhook_gaps
 where webhook_id = %(webhook_id)b::text::uuid
   and found_at in (select found_at from webhook_gaps where webhook_id = %(webhook_id)b::text::uuid
                     order by found_at desc offset %(kept)b);

-- name: take_deliveries
-- Due deliveries that this sender lease is not sending. An attempt counts before it is made: if its sender dies, it is
-- unknown whether it arrived.
with held as materialized (
  select webhook_id, tenant, name, answer_links, kind, url, email_addresses, secret,
         case when old_secret_until > clock_timestamp() then old_secret end as old_secret
    from webhooks
   where webhook_id = %(webhook_id)b::text::uuid and lease_number = %(lease)b and not paused and hold_until <= clock_timestamp()
     for no key update
), due as materialized (
  select d.webhook_id, d.ordinal from webhook_deliveries d join held using (webhook_id)
   where d.next_attempt_at <= now() and d.sent_under_lease is distinct from %(lease)b
   order by d.next_attempt_at, d.ordinal
   limit %(limit)b
)
update webhook_deliveries d
   set attempts = d.attempts + 1, last_attempt_at = clock_timestamp(), sent_under_lease = %(lease)b, hold_reason = ''
  from due join held using (webhook_id)
 where d.webhook_id = due.webhook_id and d.ordinal = due.ordinal
returning d.ordinal, d.delivery_id::text, d.body, d.attempts, d.last_attempt_at, held.url, held.secret, held.old_secret,
          held.kind, held.email_addresses, d.accepted_addresses, held.tenant || '|' || held.webhook_id,
          held.tenant, held.webhook_id::text, held.name, held.answer_links, d.line;

-- name: count_due
-- The deliveries that `take_deliveries` would take, without the lock.
select count(*) from (select from webhook_deliveries d
                       where d.webhook_id = %(webhook_id)b::text::uuid and d.next_attempt_at <= now()
                         and d.sent_under_lease is distinct from %(lease)b limit %(limit)b) due;

-- name: hold_deliveries
-- The due deliveries wait for the tenant's quota. Nothing failed, so no attempt is counted.
with held as materialized (
  select webhook_id from webhooks
   where webhook_id = %(webhook_id)b::text::uuid and lease_number = %(lease)b and not paused
     for no key update
)
update webhook_deliveries d
   set next_attempt_at = clock_timestamp() + make_interval(secs => %(wait_seconds)b), hold_reason = 'TENANT_QUOTA'
  from held
 where d.webhook_id = held.webhook_id and d.next_attempt_at <= now() and d.sent_under_lease is distinct from %(lease)b;

-- name: give_back
-- Nothing was sent, so no attempt is counted, whichever sender lease has the delivery now.
with held as materialized (
  select webhook_id from webhooks where webhook_id = %(webhook_id)b::text::uuid for no key update
)
update webhook_deliveries d
   set attempts = greatest(d.attempts - 1, 0), sent_under_lease = nullif(d.sent_under_lease, %(lease)b)
  from held
 where d.webhook_id = held.webhook_id and d.ordinal = %(ordinal)b and d.state = 'PENDING';

-- name: count_received
-- The fence of a received delivery.
update webhooks set pending = pending - 1, delivered = delivered + 1, last_delivered_at = clock_timestamp(), problem = ''
 where webhook_id = %(webhook_id)b::text::uuid and lease_number = %(lease)b returning 1;

-- name: count_failed
-- The fence of a failed delivery.
update webhooks
   set pending = pending - %(died)b, dead = dead + %(died)b, last_failed_at = clock_timestamp(), problem = %(problem)b,
       hold_until = greatest(hold_until, clock_timestamp() + make_interval(secs => %(hold_seconds)b))
 where webhook_id = %(webhook_id)b::text::uuid and lease_number = %(lease)b
returning dead;

-- name: end_delivery
-- The delivery was received or given up. A received delivery needs its body no more.
update webhook_deliveries
   set state = %(state)b, next_attempt_at = null, sent_under_lease = null, last_status = %(status)b, last_error = %(error)b,
       accepted_addresses = %(accepted_addresses)b::text[], ended_at = clock_timestamp(),
       body = case when %(state)b::text = 'DELIVERED' then '' else body end
 where webhook_id = %(webhook_id)b::text::uuid and ordinal = %(ordinal)b
returning line;

-- name: put_off_delivery
-- The delivery failed and is sent again later.
update webhook_deliveries
   set next_attempt_at = clock_timestamp() + make_interval(secs => %(wait_seconds)b), sent_under_lease = null,
       last_status = %(status)b, last_error = %(error)b, accepted_addresses = %(accepted_addresses)b::text[]
 where webhook_id = %(webhook_id)b::text::uuid and ordinal = %(ordinal)b;

-- name: advance_line
-- The next delivery of the line is due at once.
update webhook_deliveries d set next_attempt_at = clock_timestamp()
 where d.webhook_id = %(webhook_id)b::text::uuid
   and d.ordinal = (select n.ordinal from webhook_deliveries n
                     where n.webhook_id = %(webhook_id)b::text::uuid and n.line = %(line)b and n.state = 'PENDING'
                     order by n.ordinal limit 1);

-- name: deliveries
-- A page, the newest first.
select {delivery}
  from webhook_deliveries d
 where d.webhook_id = %(webhook_id)b::text::uuid and d.ordinal < %(before)b
   and (cardinality(%(states)b::text[]) = 0 or d.state = any(%(states)b::text[]))
 order by d.ordinal desc
 limit %(page_size)b;

-- name: delivery
-- One delivery.
select {delivery}
  from webhook_deliveries d
 where d.webhook_id = %(webhook_id)b::text::uuid and d.delivery_id = %(delivery_id)b::text::uuid;

-- name: dead_letters
-- One dead delivery, or the oldest.
select d.ordinal, d.line from webhook_deliveries d
 where d.webhook_id = %(webhook_id)b::text::uuid and d.state = 'DEAD'
   and (%(delivery_id)b::text = '' or d.delivery_id = nullif(%(delivery_id)b::text, '')::uuid)
 order by d.ordinal limit %(limit)b;

-- name: revive
-- Pending again, with all attempts.
update webhook_deliveries d
   set state = 'PENDING', attempts = 0, ended_at = null
  from unnest(%(ordinals)b::bigint[]) as r(ordinal)
 where d.webhook_id = %(webhook_id)b::text::uuid and d.ordinal = r.ordinal;

-- name: take_place
-- The next delivery of these lines that is not in flight loses its position: a replayed one may come before it.
update webhook_deliveries d set next_attempt_at = null, hold_reason = ''
 where d.webhook_id = %(webhook_id)b::text::uuid and d.line = any(%(lines)b::text[])
   and d.next_attempt_at is not null and d.sent_under_lease is null;

-- name: set_in_line
-- Where no delivery is next, the first one becomes it.
update webhook_deliveries d set next_attempt_at = clock_timestamp()
  from (select distinct on (n.line) n.ordinal from webhook_deliveries n
         where n.webhook_id = %(webhook_id)b::text::uuid and n.line = any(%(lines)b::text[]) and n.state = 'PENDING'
           and not exists (select from webhook_deliveries o
                            where o.webhook_id = n.webhook_id and o.line = n.line and o.next_attempt_at is not null)
         order by n.line, n.ordinal) f
 where d.webhook_id = %(webhook_id)b::text::uuid and d.ordinal = f.ordinal;

-- name: count_revived
-- In the transaction of the replayed rows.
update webhooks set pending = pending + %(count)b, dead = dead - %(count)b where webhook_id = %(webhook_id)b::text::uuid
returning dead;

-- name: discard
-- Deletes them for good.
delete from webhook_deliveries
 where webhook_id = %(webhook_id)b::text::uuid and ordinal = any(%(ordinals)b::bigint[]);

-- name: count_discarded
-- In the transaction of the discarded rows.
update webhooks set dead = dead - %(count)b where webhook_id = %(webhook_id)b::text::uuid returning dead;

-- name: count_written
-- In the transaction of a row that was written without a sender lease.
update webhooks set pending = pending + 1 where webhook_id = %(webhook_id)b::text::uuid;

-- name: now
-- The only clock.
select clock_timestamp();
