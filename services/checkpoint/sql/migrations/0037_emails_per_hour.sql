-- How many recipients a tenant may send e-mail to within an hour; null: no limit. A delivery beyond it waits.

set lock_timeout = '5s';

alter table tenants
  add column max_emails_per_hour bigint default 200 check (max_emails_per_hour >= 20),
  drop constraint tenants_own,
  add constraint tenants_own check (
    own <@ array['RUNNING_TASKS', 'SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY', 'EMAILS_PER_HOUR']);

alter table tenant_windows
  drop constraint tenant_windows_quota,
  add constraint tenant_windows_quota check (
    quota in ('SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY', 'EMAILS_PER_HOUR'));

alter table tenant_warnings
  drop constraint tenant_warnings_quota,
  add constraint tenant_warnings_quota check (
    quota in ('RUNNING_TASKS', 'SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY', 'EMAILS_PER_HOUR'));

-- Why a delivery waits although no attempt failed.
alter table webhook_deliveries
  add column hold_reason text not null default ''
      constraint webhook_deliveries_hold_reason check (hold_reason in ('', 'TENANT_QUOTA'));
create index webhook_deliveries_held on webhook_deliveries (webhook_id) where hold_reason <> '';
