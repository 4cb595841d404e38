-- Receipts: each outcome of a call that may have an effect gets a number and a link in the chain of its task, in the
-- transaction that writes the outcome, whichever statement that is. See docs/receipts.md.

alter table fences
  -- The number of receipts of the task, and the link of the newest one.
  add column receipts     int   not null default 0 check (receipts >= 0),
  add column receipt_head bytea not null default decode(repeat('00', 32), 'hex') check (length(receipt_head) = 32);

alter table calls
  -- Null: no outcome, a PURE call, or an outcome from before there were receipts.
  add column receipt_number int   check (receipt_number >= 1),
  add column receipt_link   bytea check (length(receipt_link) = 32),
  add check ((receipt_number is null) = (receipt_link is null));

-- The record of a call that its link is the SHA-256 of: JSON with sorted keys and without spaces. Version 1 never changes.
-- tenure/domain/receipts.py writes the same text.
create function receipt_text(c calls, tenant text, number int, previous bytea) returns text language sql stable as $$
  select '{"accept_time":"' || to_char(c.accepted_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    || '","arguments_sha256":"' || encode(c.arguments_hash, 'hex')
    || '","call":' || to_json(c.call_id)
    || ',"call_attempt":' || c.call_attempt
    || ',"claim":' || to_json(c.claim_id)
    || ',"effect_class":"' || c.effect_class
    || '","epoch":"' || c.epoch
    || '","finish_time":"' || to_char(c.finished_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    || '","number":' || number
    || ',"outcome_message_sha256":"' || encode(sha256(c.outcome), 'hex')
    || '","previous":"' || encode(previous, 'hex')
    || '","start_time":"' || coalesce(to_char(c.started_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '')
    || '","task":"' || c.task_id
    || '","tenant":' || to_json(tenant)
    || ',"tool":' || to_json(c.tool)
    || ',"v":1}'
$$;

-- Statements that write outcomes lock the fence before the call, as all statements do.
create function add_receipt() returns trigger language plpgsql set search_path = tools, pg_temp as $$
begin
  update fences
     set receipts = receipts + 1,
         receipt_head = sha256(convert_to(receipt_text(new, tenant, receipts + 1, receipt_head), 'UTF8'))
   where task_id = new.task_id
  returning receipts, receipt_head into new.receipt_number, new.receipt_link;
  return new;
end $$;
create trigger receipt_of_new_call before insert on calls for each row
  when (new.outcome is not null and new.effect_class <> 'PURE') execute function add_receipt();
create trigger receipt_of_outcome before update on calls for each row
  when (old.outcome is null and new.outcome is not null and new.effect_class <> 'PURE') execute function add_receipt();

create function refuse_change_of_receipt() returns trigger language plpgsql as $$
begin
  raise exception 'call % of task % has a receipt: its record does not change', old.call_id, old.task_id
    using errcode = 'check_violation';
end $$;
create trigger receipts_stay before update on calls for each row
  when (old.receipt_number is not null) execute function refuse_change_of_receipt();
