-- Makes the schemas and roles of Tenure, once, in a new database: run by psql as the superuser.
-- An owner migrates its schema; a service works in it and owns nothing. No other role may use the database. The rights of
-- the services inside of the schemas are given after each migration: TENURE_CHECKPOINT_SERVICE_ROLE, docs/postgres.md.
\set ledger_owner `cat /run/tenure/own/ledger_owner`
\set ledger_service `cat /run/tenure/own/ledger_service`
\set tools_owner `cat /run/tenure/own/tools_owner`
\set tools_service `cat /run/tenure/own/tools_service`
\set models_owner `cat /run/tenure/own/models_owner`
\set models_service `cat /run/tenure/own/models_service`
set password_encryption = 'scram-sha-256';
create role ledger_owner login password :'ledger_owner';
create role ledger_service login password :'ledger_service';
create role tools_owner login password :'tools_owner';
create role tools_service login password :'tools_service';
create role models_owner login password :'models_owner';
create role models_service login password :'models_service';
revoke all on database tenure from public;
grant connect on database tenure to ledger_owner, ledger_service, tools_owner, tools_service, models_owner, models_service;
revoke all on schema public from public;
create schema ledger authorization ledger_owner;
create schema tools authorization tools_owner;
create schema models authorization models_owner;
