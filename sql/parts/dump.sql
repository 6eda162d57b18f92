------------------------------------------------------------------------
-- A dump holds everything except the secrets, which piece is in use, and the epochs of
-- the logs that were written here.
------------------------------------------------------------------------

SELECT pg_extension_config_dump('outbox.origins', '');
SELECT pg_extension_config_dump('outbox.events_seq', '');
SELECT pg_extension_config_dump('outbox.events_0', '');
SELECT pg_extension_config_dump('outbox.events_1', '');
SELECT pg_extension_config_dump('outbox.events_2', '');
SELECT pg_extension_config_dump('outbox.kept_events', '');
SELECT pg_extension_config_dump('outbox.scheduled', '');
SELECT pg_extension_config_dump('outbox.dedup', '');
SELECT pg_extension_config_dump('outbox.event_types', '');
SELECT pg_extension_config_dump('outbox.endpoint_settings', '');
SELECT pg_extension_config_dump('outbox.endpoint_settings_endpoint_id_seq', '');
SELECT pg_extension_config_dump('outbox.endpoint_audit', '');
SELECT pg_extension_config_dump('outbox.endpoint_audit_change_id_seq', '');
SELECT pg_extension_config_dump('outbox.subscriptions', '');
SELECT pg_extension_config_dump('outbox.positions_0', '');
SELECT pg_extension_config_dump('outbox.positions_1', '');
SELECT pg_extension_config_dump('outbox.ticks_0', '');
SELECT pg_extension_config_dump('outbox.ticks_1', '');
SELECT pg_extension_config_dump('outbox.ticks_2', '');
SELECT pg_extension_config_dump('outbox.parked', '');
SELECT pg_extension_config_dump('outbox.replays', '');
SELECT pg_extension_config_dump('outbox.replays_replay_id_seq', '');
SELECT pg_extension_config_dump('outbox.commands', '');
SELECT pg_extension_config_dump('outbox.commands_command_id_seq', '');
SELECT pg_extension_config_dump('outbox.forgotten', '');
SELECT pg_extension_config_dump('outbox.forgotten_forget_id_seq', '');
SELECT pg_extension_config_dump('outbox.refused_events', '');
SELECT pg_extension_config_dump('outbox.refused_events_refused_id_seq', '');
SELECT pg_extension_config_dump('outbox.missed_events', '');
SELECT pg_extension_config_dump('outbox.missed_events_missed_id_seq', '');
SELECT pg_extension_config_dump('outbox.retention_here', '');
SELECT pg_extension_config_dump('outbox.portal_limits_here', '');
SELECT pg_extension_config_dump('outbox.tenant_limits_here', '');
SELECT pg_extension_config_dump('outbox.emit_topics', '');
SELECT pg_extension_config_dump('outbox.figures_0', '');
SELECT pg_extension_config_dump('outbox.figures_1', '');
SELECT pg_extension_config_dump('outbox.figures_2', '');
SELECT pg_extension_config_dump('outbox.figures_3', '');
SELECT pg_extension_config_dump('outbox.figures_4', '');
SELECT pg_extension_config_dump('outbox.figures_5', '');
SELECT pg_extension_config_dump('outbox.attempt_log_0', '');
SELECT pg_extension_config_dump('outbox.attempt_log_1', '');
SELECT pg_extension_config_dump('outbox.attempt_log_2', '');
SELECT pg_extension_config_dump('outbox.attempt_runs_0', '');
SELECT pg_extension_config_dump('outbox.attempt_runs_1', '');
SELECT pg_extension_config_dump('outbox.attempt_runs_2', '');

------------------------------------------------------------------------
-- Where VACUUM cuts off the empty end of a table, a standby ends each transaction that has
-- read it.  Tables are used again instead.  Copies of payloads can be large.
------------------------------------------------------------------------

DO $$
DECLARE
    t regclass;
BEGIN
    FOR t IN SELECT c.oid FROM pg_class c
             WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND c.relname <> 'kept_events'
    LOOP
        EXECUTE format('ALTER TABLE %s SET (vacuum_truncate = off, toast.vacuum_truncate = off)', t);
    END LOOP;
END $$;

SELECT outbox.wake_launcher();
