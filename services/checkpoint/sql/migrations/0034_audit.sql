-- The audit log. Records are appended only; each has a hash over itself and the hash before, see tenure/domain/audit.py.
create table audit_records (
  number      bigint primary key check (number >= 1),
  record_id   text not null unique,
  recorded_at timestamptz not null,
  tenant      text not null,
  subject     text not null,
  peer        text not null,
  method      text not null,
  target      text not null,
  decision    text not null check (decision in ('ALLOWED', 'DENIED')),
  reason      text not null,
  count       bigint not null check (count >= 1),
  hash        bytea not null unique check (octet_length(hash) = 32)
);

create index audit_records_of_tenant on audit_records (tenant, number);
create index audit_records_of_subject on audit_records (subject, number);
create index audit_records_of_method on audit_records (method, number);

create function refuse_change_of_the_audit_log() returns trigger language plpgsql as $$
begin
  raise exception 'the audit log is never changed' using errcode = 'check_violation';
end $$;
create trigger audit_records_stay before update or delete or truncate on audit_records
  for each statement execute function refuse_change_of_the_audit_log();

create function refuse_gap_in_the_audit_log() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if new.number <> (select coalesce(max(number), 0) + 1 from audit_records) then
    raise exception 'the audit log has no gaps' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger audit_records_follow before insert on audit_records
  for each row execute function refuse_gap_in_the_audit_log();
