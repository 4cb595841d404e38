-- The statements of the audit log.

-- name: lock
-- Appends wait here for each other: each record needs the hash of the one before.
select pg_advisory_xact_lock(hashtextextended('audit log', 0));

-- name: head
-- The last record, and the time for the next one.
select coalesce(newest.number, 0), newest.hash, clock_timestamp()
  from (select) as one
  left join lateral (select number, hash from audit_records order by number desc limit 1) as newest on true;

-- name: known
-- Those of the records that an earlier try has appended.
select record_id from audit_records where record_id = any (%(record_ids)b::text[]);

-- name: append
-- One record at the end of the chain.
insert into audit_records (number, record_id, recorded_at, tenant, subject, peer, method, target, decision, reason,
                           count, hash, recorder)
values (%(number)b, %(record_id)b, %(recorded_at)b, %(tenant)b, %(subject)b, %(peer)b, %(method)b, %(target)b,
        %(decision)b, %(reason)b, %(count)b, %(hash)b, %(recorder)b);

-- name: list_newest
-- Records before a number, the newest first; by the primary key, or by the index of a filter.
select number, record_id, recorded_at, tenant, subject, peer, method, target, decision, reason, count, hash,
       recorder
  from audit_records
 where number < %(position)b
   and (%(tenant)b::text = '' or tenant = %(tenant)b) and (%(subject)b::text = '' or subject = %(subject)b)
   and (%(method)b::text = '' or method = %(method)b) and (%(decision)b::text = '' or decision = %(decision)b)
 order by number desc
 limit %(limit)b;

-- name: list_oldest
-- Records after a number, the oldest first.
select number, record_id, recorded_at, tenant, subject, peer, method, target, decision, reason, count, hash,
       recorder
  from audit_records
 where number > %(position)b
   and (%(tenant)b::text = '' or tenant = %(tenant)b) and (%(subject)b::text = '' or subject = %(subject)b)
   and (%(method)b::text = '' or method = %(method)b) and (%(decision)b::text = '' or decision = %(decision)b)
 order by number
 limit %(limit)b;
