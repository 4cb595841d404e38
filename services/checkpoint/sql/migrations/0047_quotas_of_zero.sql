-- A quota of 0 allows nothing; null: no limit, as before.

set lock_timeout = '5s';

alter table tenants
  drop constraint tenants_max_running_tasks_check,
  drop constraint tenants_max_submits_per_minute_check,
  drop constraint tenants_max_tokens_per_hour_check,
  drop constraint tenants_max_nano_usd_per_day_check,
  drop constraint tenants_max_emails_per_hour_check,
  add constraint tenants_max_running_tasks_check check (max_running_tasks >= 0),
  add constraint tenants_max_submits_per_minute_check check (max_submits_per_minute >= 0),
  add constraint tenants_max_tokens_per_hour_check check (max_tokens_per_hour >= 0),
  add constraint tenants_max_nano_usd_per_day_check check (max_nano_usd_per_day >= 0),
  add constraint tenants_max_emails_per_hour_check check (max_emails_per_hour = 0 or max_emails_per_hour >= 20);
