-- Roles for a haloctl database on Postgres: who may read, and who may also submit, cancel and run a head.
-- Run it as the owner of the database after `haloctl db upgrade`, and again after each upgrade:
--   psql --set ON_ERROR_STOP=1 --dbname haloctl --file infra/postgres-roles.sql
-- Then give a role to each user:
--   GRANT haloctl_reader TO alice;
--   GRANT haloctl_writer TO bob, haloctl_head;
-- `haloctl db upgrade`, `haloctl db import` and `haloctl db prune` stay with the owner.

DO $$
DECLARE role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['haloctl_reader', 'haloctl_writer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
    END LOOP;
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO haloctl_reader, haloctl_writer', current_schema());
    -- `haloctl query` makes temporary views
    EXECUTE format('GRANT CONNECT, TEMPORARY ON DATABASE %I TO haloctl_reader, haloctl_writer', current_database());
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM haloctl_reader, haloctl_writer', current_schema());
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO haloctl_reader, haloctl_writer', current_schema());
    EXECUTE format('GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO haloctl_writer', current_schema());
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO haloctl_writer', current_schema());
END $$;

REVOKE INSERT, UPDATE, DELETE ON haloctl_schema FROM haloctl_writer;

-- Who did what is only ever added to, and the server itself says which user a session has. Events go when an imported
-- job is removed, which is on record in turn.
REVOKE INSERT, UPDATE ON events FROM haloctl_writer;
GRANT INSERT (at, job, task, attempt, from_state, to_state, detail, actor) ON events TO haloctl_writer;
REVOKE INSERT, UPDATE, DELETE ON changes FROM haloctl_writer;
GRANT INSERT (at, actor, action, subject, detail) ON changes TO haloctl_writer;
