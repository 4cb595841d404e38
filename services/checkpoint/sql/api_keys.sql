-- The statements of API keys.

-- name: lock_tenant
-- Creations of keys of one tenant wait here for each other.
select pg_advisory_xact_lock(hashtextextended('api keys of ' || %(tenant)b::text, 0));

-- name: count
-- Keys of a tenant that are not revoked; by the index on (tenant, …).
select count(*) from api_keys where tenant = %(tenant)b and revoked_at is null;

-- name: create
-- A repeat finds its key there.
insert into api_keys (key_id, tenant, name, permissions, digest, creator, expires_at)
values (%(key_id)b, %(tenant)b, %(name)b, %(permissions)b::text[], %(digest)b, %(creator)b, %(expires_at)b::timestamptz)
on conflict (key_id) do nothing;

-- part: page
-- Newest first.
(%(all)b or (revoked_at is null and (expires_at is null or expires_at > clock_timestamp())))
   and (%(before)b::timestamptz is null
        or (created_at, key_id) < (%(before)b::timestamptz, %(before_id)b::text))
 order by created_at desc, key_id desc
 limit %(limit)b

-- part: read
-- The columns of ApiKeyRow. The time of the database decides whether a key has expired.
select {api_key}, revoked_at is null and (expires_at is null or expires_at > clock_timestamp())
  from api_keys k

-- name: read
-- One key, also a revoked one.
{read} where key_id = %(key_id)b;

-- name: list
-- Keys of all tenants, newest first.
{read}
 where {page};

-- name: list_of_tenant
-- The same, of one tenant.
{read}
 where tenant = %(tenant)b
   and {page};

-- name: revoke
-- A repeat changes nothing, also not the revoker.
update api_keys set revoked_at = clock_timestamp(), revoker = %(actor)b
 where key_id = %(key_id)b and revoked_at is null;
