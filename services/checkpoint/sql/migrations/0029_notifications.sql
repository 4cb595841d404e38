-- A webhook sends signed requests, messages to Slack, or e-mail. The URL of a Slack webhook is its secret; an e-mail needs
-- none. Of a delivery by e-mail the addresses that accepted it are kept: a further attempt sends to the others only.
alter table webhooks
  add column kind text not null default 'STANDARD'
      constraint webhooks_kind check (kind in ('STANDARD', 'SLACK', 'EMAIL')),
  add column email_addresses text[] not null default '{}',
  add constraint webhook_target_of_kind check ((kind = 'EMAIL') = (url = '')
                                               and (kind = 'EMAIL') = (cardinality(email_addresses) > 0)),
  add constraint webhook_secret_of_kind check ((kind = 'STANDARD') = (octet_length(secret) > 0));

alter table webhook_deliveries add column accepted_addresses text[] not null default '{}';
