-- Coordinators and checkpoint services record refusals too: the identity of the process that recorded it. Records of an
-- earlier release have none, and keep their hashes (tenure/domain/audit.py).

set lock_timeout = '5s';

alter table audit_records add column recorder text not null default '';
