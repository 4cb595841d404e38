-- Since when the end of a call is unknown and the tool service tries to learn it; null: it never had to. The call is being
-- settled while it is STARTED.
alter table calls add column settling_since timestamptz;
