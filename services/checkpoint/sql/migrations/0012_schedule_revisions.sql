-- Updates of schedules: each counts its own, so that nobody changes what somebody else has changed meanwhile.
alter table schedules add column revision bigint not null default 1 check (revision >= 1);
