-- The identities of clients. Of a key only a digest is stored: it has 256 random bits, so that no salt is needed. A revoked
-- key stays, so that its id is never given to another key.
create table api_keys (
  key_id      text primary key check (key_id ~ '^[a-z0-9]{12}$'),
  tenant      text not null check (tenant ~ '^[a-z0-9-]{0,63}$'),  -- '': every tenant
  name        text not null check (length(name) between 1 and 200),
  permissions text[] not null check (
    cardinality(permissions) between 1 and 5
    and permissions <@ array['READ', 'WRITE', 'APPROVE', 'TENANT_ADMIN', 'OPERATE']
  ),
  digest      bytea not null check (octet_length(digest) = 32),
  creator     text not null,
  created_at  timestamptz not null default now(),
  expires_at  timestamptz,
  revoked_at  timestamptz,
  revoker     text not null default '',
  check (tenant <> '' or 'OPERATE' = any (permissions))
);

create index api_keys_of_tenant on api_keys (tenant, created_at desc, key_id desc);
create index api_keys_of_all on api_keys (created_at desc, key_id desc);
