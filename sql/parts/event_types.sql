------------------------------------------------------------------------
-- The catalogue of event types: an operator's notes about topics.
------------------------------------------------------------------------

CREATE TABLE outbox.event_types (
    topic       text COLLATE "C" PRIMARY KEY,
    description text,
    schema      jsonb,
    example     jsonb,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    version     text,
    deprecated  text
);
COMMENT ON TABLE outbox.event_types IS
'The topics of events, described for subscribers. With outbox.require_event_types only these may be emitted';
COMMENT ON COLUMN outbox.event_types.topic IS 'Topic of the events';
COMMENT ON COLUMN outbox.event_types.description IS 'Meaning of such an event (NULL: nothing is said)';
COMMENT ON COLUMN outbox.event_types.schema IS
'JSON schema of the payload, for readers: no payload is compared with it (NULL: none)';
COMMENT ON COLUMN outbox.event_types.example IS
'Example of a payload, which outbox.send_test() sends (NULL: none)';
COMMENT ON COLUMN outbox.event_types.changed_at IS 'When the entry was last set';
COMMENT ON COLUMN outbox.event_types.version IS 'Version of the payload (NULL: nothing is said)';
COMMENT ON COLUMN outbox.event_types.deprecated IS
'Why subscribers should not rely on it any more, and its substitute (NULL: it is not deprecated)';

CREATE FUNCTION outbox.check_topic(topic text) RETURNS void
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_check_topic_1_0';
COMMENT ON FUNCTION outbox.check_topic IS
'Refuses a topic that no event of an application can have (22023; 42939: it is reserved)';

-- A pattern that matches nothing is a mistake where only listed topics are emitted.
CREATE FUNCTION outbox.check_listed(topics text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pattern text;
BEGIN
    IF current_setting('outbox.require_event_types', true) = 'on' THEN
        SELECT p INTO pattern FROM unnest(topics) p
        WHERE p <> '*' AND p NOT LIKE 'outbox.%'
        AND NOT EXISTS (SELECT 1 FROM outbox.event_types t WHERE outbox.topic_in(t.topic, ARRAY[p])) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'no event type matches topic pattern "%"', pattern
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'topics',
                      HINT = 'Correct it, or use "*" for all topics. The catalogue of event types lists them.';
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_listed IS
'With outbox.require_event_types, refuses topic patterns that match no listed topic (22023)';

-- Rules of the meta-schemas of JSON Schema, draft 4 to 2020-12, for the values of
-- keywords: their types, and where other schemas are in them.
CREATE FUNCTION outbox.schema_problem(schema jsonb) RETURNS text
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
AS $$
WITH RECURSIVE keyword (names, types, schemas) AS (VALUES
    ('{$id,id,$schema,$ref,$anchor,$dynamicRef,$dynamicAnchor,$recursiveRef,$comment,title,description,format,
       pattern,contentEncoding,contentMediaType}'::text[], '{string}'::text[], NULL),
    ('{deprecated,readOnly,writeOnly,uniqueItems,$recursiveAnchor}', '{boolean}', NULL),
    ('{maximum,minimum,multipleOf,maxLength,minLength,maxItems,minItems,maxProperties,minProperties,maxContains,
       minContains}', '{number}', NULL),
    ('{exclusiveMaximum,exclusiveMinimum}', '{number,boolean}', NULL),
    ('{type}', '{string,array}', NULL),
    ('{required,enum,examples}', '{array}', NULL),
    ('{dependentRequired,$vocabulary}', '{object}', NULL),
    ('{not,if,then,else,contains,propertyNames,additionalProperties,additionalItems,unevaluatedItems,
       unevaluatedProperties,contentSchema}', '{object,boolean}', 'value'),
    ('{items}', '{object,boolean,array}', 'value'),
    ('{allOf,anyOf,oneOf,prefixItems}', '{array}', 'value'),
    ('{properties,patternProperties,$defs,definitions,dependentSchemas,dependencies}', '{object}', 'members')),
part (path, schema) AS (
    SELECT '', schema
    UNION ALL
    SELECT concat(p.path, '/', k.key, c.path), c.schema
    FROM part p
    CROSS JOIN jsonb_each(CASE jsonb_typeof(p.schema) WHEN 'object' THEN p.schema ELSE '{}' END) k
    JOIN keyword w ON k.key = ANY (w.names) AND w.schemas IS NOT NULL AND jsonb_typeof(k.value) = ANY (w.types)
    CROSS JOIN LATERAL (
        SELECT '', k.value WHERE w.schemas = 'value' AND jsonb_typeof(k.value) <> 'array'
        UNION ALL
        SELECT concat('/', a.number - 1), a.value
        FROM jsonb_array_elements(CASE jsonb_typeof(k.value) WHEN 'array' THEN k.value ELSE '[]' END)
             WITH ORDINALITY a (value, number)
        UNION ALL
        SELECT concat('/', m.key), m.value
        FROM jsonb_each(CASE w.schemas WHEN 'members' THEN k.value ELSE '{}' END) m
        WHERE k.key <> 'dependencies' OR jsonb_typeof(m.value) <> 'array') c (path, schema))
SELECT format('%s cannot be %s', COALESCE(NULLIF(x.path, ''), 'it'), left(x.value::text, 100))
FROM (SELECT p.path, p.schema AS value FROM part p WHERE jsonb_typeof(p.schema) NOT IN ('object', 'boolean')
      UNION ALL
      SELECT concat(p.path, '/', k.key), k.value
      FROM part p
      CROSS JOIN jsonb_each(CASE jsonb_typeof(p.schema) WHEN 'object' THEN p.schema ELSE '{}' END) k
      JOIN keyword w ON k.key = ANY (w.names)
      WHERE CASE
          WHEN jsonb_typeof(k.value) <> ALL (w.types) THEN true
          WHEN k.key = 'type' THEN jsonb_array_length(jsonb_build_array() || k.value) = 0 OR EXISTS (
              SELECT 1 FROM jsonb_array_elements(jsonb_build_array() || k.value) t
              WHERE t NOT IN ('"array"', '"boolean"', '"integer"', '"null"', '"number"', '"object"', '"string"'))
          WHEN k.key = 'required' THEN EXISTS (
              SELECT 1 FROM jsonb_array_elements(k.value) t WHERE jsonb_typeof(t) <> 'string')
          WHEN k.key = 'multipleOf' THEN k.value::numeric <= 0
          WHEN k.key ~ '^(max|min)[A-Z]' THEN k.value::numeric < 0 OR k.value::numeric <> trunc(k.value::numeric)
          ELSE false END) x
WHERE COALESCE(schema ->> '$schema' ~ '//json-schema[.]org/', true) OR x.path IN ('', '/$schema')
ORDER BY x.path COLLATE "C" LIMIT 1
$$;
COMMENT ON FUNCTION outbox.schema_problem IS
'The reason why it is no JSON Schema (NULL: none, or $schema names a dialect of its own)';

-- The example is checked as the payload of an event is.
CREATE FUNCTION outbox.set_event_type(topic text, description text DEFAULT NULL,
    schema jsonb DEFAULT NULL, example jsonb DEFAULT NULL, version text DEFAULT NULL,
    deprecated text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    problem CONSTANT text := outbox.schema_problem(schema);
BEGIN
    IF topic IS NULL THEN
        RAISE EXCEPTION 'topic must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the topic that events are emitted with, like ''order.created''.';
    END IF;
    PERFORM outbox.check_topic(topic);
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'invalid schema of event type "%": %', topic, problem
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A JSON Schema is an object whose keywords have the values that json-schema.org names, '
                         'or true or false. NULL: none.';
    END IF;
    IF example IS NOT NULL THEN
        PERFORM outbox.check_event(NULL, topic, NULL, NULL, NULL, NULL, example, NULL, NULL);
    END IF;
    IF GREATEST(octet_length(example::text), octet_length(schema::text))
       > (SELECT s.setting::int8 FROM pg_settings s WHERE s.name = 'outbox.max_payload_size') THEN
        RAISE EXCEPTION 'schema or example of event type "%" is too large', topic
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'Use ones that outbox.max_payload_size allows as a payload.';
    END IF;
    INSERT INTO outbox.event_types AS t (topic, description, schema, example, version, deprecated)
    VALUES (topic, description, schema, example, version, deprecated)
    ON CONFLICT ON CONSTRAINT event_types_pkey DO UPDATE
    SET description = EXCLUDED.description, schema = EXCLUDED.schema, example = EXCLUDED.example,
        version = EXCLUDED.version, deprecated = EXCLUDED.deprecated, changed_at = EXCLUDED.changed_at;
    PERFORM outbox.note_change(NULL, '', 'describe', '{}', jsonb_build_object('topic', topic));
END $$;
COMMENT ON FUNCTION outbox.set_event_type IS
'Lists a topic in outbox.event_types, or replaces its entry';

CREATE FUNCTION outbox.drop_event_type(topic text, if_exists bool DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
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
        PERFORM outbox.note_change(NULL, '', 'drop', jsonb_build_object('topic', topic), '{}');
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

-- AsyncAPI knows JSON Schema of draft 7, in which nothing but $schema tells a later draft.  A
-- schema of draft 4 or 6, or of a dialect of its own, is no schema there: it is left out.  Readers follow
-- each "$ref", also in examples, from the root of the document, and refuse all of it where one leads nowhere.
CREATE FUNCTION outbox.asyncapi(title text DEFAULT NULL, version text DEFAULT '1.0.0') RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
SELECT jsonb_build_object(
    'asyncapi', '3.0.0',
    'info', jsonb_build_object('title', COALESCE($1, 'Events of ' || current_database()), 'version', COALESCE($2, '1.0.0')),
    'defaultContentType', 'application/json',
    'channels', COALESCE(jsonb_object_agg(t.topic, jsonb_build_object(
        'address', t.topic,
        'messages', jsonb_build_object(t.topic, jsonb_build_object('$ref', '#/components/messages/' || t.topic))))
        FILTER (WHERE t.topic IS NOT NULL), '{}'),
    'operations', COALESCE(jsonb_object_agg('send.' || t.topic, jsonb_build_object(
        'action', 'send', 'channel', jsonb_build_object('$ref', '#/channels/' || t.topic)))
        FILTER (WHERE t.topic IS NOT NULL), '{}'),
    'components', jsonb_build_object('messages', COALESCE(jsonb_object_agg(t.topic, jsonb_strip_nulls(jsonb_build_object(
        'name', t.topic, 'description', t.description, 'x-version', t.version, 'x-deprecated', t.deprecated,
        'tags', CASE WHEN t.deprecated IS NOT NULL THEN '[{"name": "deprecated"}]'::jsonb END))
        || CASE WHEN t.schema = 'false' THEN '{"payload": {"not": {}}}'
                WHEN jsonb_typeof(t.schema) = 'object'
                     AND COALESCE(t.schema ->> '$schema' ~ '//json-schema[.]org/(draft-07|draft/20)', true)
                     AND NOT EXISTS (SELECT FROM jsonb_path_query(t.schema, '$.**."$ref"') r (path)
                                     WHERE r.path #>> '{}' ~ '^#(/(?![-+[:space:]]|0[0-9])[^/%]+)*$' IS NOT TRUE
                                     OR jsonb_typeof(t.schema #> ARRAY(
                                            SELECT replace(replace(p.part, '~1', '/'), '~0', '~')
                                            FROM string_to_table(substr(r.path #>> '{}', 3), '/') p (part)))
                                        IN ('object', 'boolean') IS NOT TRUE)
                THEN jsonb_build_object('payload', regexp_replace((t.schema - '$schema')::text, '(?<=[{ ])"[$]ref": "#',
                                                                  '"$ref": "#/components/messages/' || t.topic || '/payload', 'g')::jsonb)
                ELSE '{}' END
        || CASE WHEN t.example IS NOT NULL AND NOT t.example @? '$.**."$ref"'
                THEN jsonb_build_object('examples', jsonb_build_array(jsonb_build_object('payload', t.example))) ELSE '{}' END)
        FILTER (WHERE t.topic IS NOT NULL), '{}')))
FROM outbox.event_types t
$$;
COMMENT ON FUNCTION outbox.asyncapi IS
'The catalogue of event types as a document of AsyncAPI 3.0, with this title and version';
