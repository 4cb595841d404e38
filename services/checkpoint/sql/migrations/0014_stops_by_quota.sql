-- A quota of 0 of a tenant is a stop of the tenant, beside one of an operator with the same selectors.
alter table stops add column by_quota boolean not null default false;
alter table stops drop constraint stops_pkey, add primary key (tenant, agent, queue, tool, by_quota);
