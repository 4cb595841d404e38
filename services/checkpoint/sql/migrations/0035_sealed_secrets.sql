-- The URL of a Slack webhook is its secret, and is stored as one; rows of an earlier release have it as the URL.

set lock_timeout = '5s';

alter table webhooks
  drop constraint webhook_secret_of_kind,
  add constraint webhook_secret_of_kind
    check (case kind when 'STANDARD' then octet_length(secret) > 0 when 'EMAIL' then octet_length(secret) = 0 else true end);
