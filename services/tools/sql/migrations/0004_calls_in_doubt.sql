-- Since when a call is in doubt, and what its tool itself says of it ('': its runner was lost).
alter table calls add column doubted_at timestamptz;
alter table calls add column doubt_note text not null default '';
