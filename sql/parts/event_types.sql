------------------------------------------------------------------------
-- The catalogue of event types: what an operator says about topics.
------------------------------------------------------------------------

CREATE TABLE outbox.event_types (
    topic       text COLLATE "C" PRIMARY KEY,
    description text,
    schema      jsonb,
    example     jsonb,
    changed_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE outbox.event_types IS
'The topics of events, described for subscribers. With outbox.require_event_types only these may be emitted';
COMMENT ON COLUMN outbox.event_types.topic IS 'Topic of the events';
COMMENT ON COLUMN outbox.event_types.description IS 'What has happened when such an event comes (NULL: nothing is said)';
COMMENT ON COLUMN outbox.event_types.schema IS
'JSON schema of the payload, for readers: no payload is compared with it (NULL: none)';
COMMENT ON COLUMN outbox.event_types.example IS
'Example of a payload, which outbox.send_test() sends (NULL: none)';
COMMENT ON COLUMN outbox.event_types.changed_at IS 'When the entry was last set';

-- Sessions remember which topics are listed, until this table changes.
CREATE FUNCTION outbox.event_types_changed() RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'outbox_event_types_changed_1_0';
COMMENT ON FUNCTION outbox.event_types_changed IS
'Trigger of outbox.event_types: sessions forget which topics are listed';
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.event_types
FOR EACH STATEMENT EXECUTE FUNCTION outbox.event_types_changed();
COMMENT ON TRIGGER changed ON outbox.event_types IS 'Sessions forget which topics are listed';
ALTER TABLE outbox.event_types ENABLE ALWAYS TRIGGER changed;

CREATE FUNCTION outbox.check_topic(topic text) RETURNS void
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_check_topic_1_0';
COMMENT ON FUNCTION outbox.check_topic IS
'Refuses a topic that no event of an application can have (22023; 42939: it is reserved)';

-- The example is checked as the payload of an event is.
CREATE FUNCTION outbox.set_event_type(topic text, description text DEFAULT NULL,
    schema jsonb DEFAULT NULL, example jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    IF topic IS NULL THEN
        RAISE EXCEPTION 'topic must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the topic that events are emitted with, like ''order.created''.';
    END IF;
    PERFORM outbox.check_topic(topic);
    IF jsonb_typeof(schema) NOT IN ('object', 'boolean') THEN
        RAISE EXCEPTION 'invalid schema of event type "%"', topic
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A JSON schema is an object, or true or false. NULL: none.';
    END IF;
    IF example IS NOT NULL THEN
        PERFORM outbox.check_event(NULL, topic, NULL, NULL, NULL, NULL, example, NULL, NULL);
        IF octet_length(example::text) > (SELECT s.setting::int8 FROM pg_settings s
                                          WHERE s.name = 'outbox.max_payload_size') THEN
            RAISE EXCEPTION 'example of event type "%" is too large', topic
                USING ERRCODE = 'program_limit_exceeded',
                      HINT = 'Use an example that outbox.max_payload_size allows as a payload.';
        END IF;
    END IF;
    INSERT INTO outbox.event_types AS t (topic, description, schema, example)
    VALUES (topic, description, schema, example)
    ON CONFLICT ON CONSTRAINT event_types_pkey DO UPDATE
    SET description = EXCLUDED.description, schema = EXCLUDED.schema, example = EXCLUDED.example,
        changed_at = EXCLUDED.changed_at;
END $$;
COMMENT ON FUNCTION outbox.set_event_type IS
'Lists a topic in outbox.event_types, or replaces its entry';

CREATE FUNCTION outbox.drop_event_type(topic text, if_exists bool DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    IF topic IS NULL THEN
        RAISE EXCEPTION 'topic must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'SELECT topic FROM outbox.event_types lists them.';
    END IF;
    DELETE FROM outbox.event_types t WHERE t.topic = drop_event_type.topic;
    IF FOUND THEN
        RETURN;
    ELSIF if_exists IS TRUE THEN
        RAISE NOTICE 'event type "%" does not exist, skipping', topic;
    ELSE
        RAISE EXCEPTION 'event type "%" does not exist', topic
            USING ERRCODE = 'undefined_object',
                  HINT = 'SELECT topic FROM outbox.event_types lists them.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.drop_event_type IS
'Removes a topic from outbox.event_types (42704: it is not listed)';
