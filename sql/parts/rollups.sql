------------------------------------------------------------------------
-- Figures that are kept of each endpoint, by five minutes for two days, and by the
-- hour for 90.
------------------------------------------------------------------------

-- Pieces 0 to 2 have buckets of five minutes and are used for a day each, 3 to 5 buckets of an
-- hour for 45 days.  Which one follows from the time, and the worker empties it before.
-- A row has entries of endpoints whose numbers, divided by 64, are its block.  An endpoint that is mostly
-- quiet would pay for a row of its own more than for a delivery.  Rows are only added, several of a block
-- and time where one was written before others.  The time comes first in the index, so that it grows at its end.
-- Compression would take more time than it saves.
CREATE TABLE outbox.figures (
    at              timestamptz NOT NULL,
    written         timestamptz NOT NULL,
    block           int4 NOT NULL,
    piece           int2 NOT NULL,
    entries         bytea NOT NULL,
    PRIMARY KEY (at, block, piece, written)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.figures_0 PARTITION OF outbox.figures FOR VALUES IN (0) USING heap WITH (toast_tuple_target = 8160);
CREATE TABLE outbox.figures_1 PARTITION OF outbox.figures FOR VALUES IN (1) USING heap WITH (toast_tuple_target = 8160);
CREATE TABLE outbox.figures_2 PARTITION OF outbox.figures FOR VALUES IN (2) USING heap WITH (toast_tuple_target = 8160);
CREATE TABLE outbox.figures_3 PARTITION OF outbox.figures FOR VALUES IN (3) USING heap WITH (toast_tuple_target = 8160);
CREATE TABLE outbox.figures_4 PARTITION OF outbox.figures FOR VALUES IN (4) USING heap WITH (toast_tuple_target = 8160);
CREATE TABLE outbox.figures_5 PARTITION OF outbox.figures FOR VALUES IN (5) USING heap WITH (toast_tuple_target = 8160);
COMMENT ON TABLE outbox.figures IS
'Figures of endpoints, by five minutes for two days and by the hour for 90, dropped or not, and of the whole database (endpoint 0)';
COMMENT ON TABLE outbox.figures_0 IS 'A piece of the figures of five minutes: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_1 IS 'A piece of the figures of five minutes: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_2 IS 'A piece of the figures of five minutes: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_3 IS 'A piece of the figures of hours: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_4 IS 'A piece of the figures of hours: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_5 IS 'A piece of the figures of hours: the pieces are used in turn';

CREATE FUNCTION outbox.figures_sum(entries bytea, wanted int4[], apart bool) RETURNS bytea
LANGUAGE C IMMUTABLE AS 'MODULE_PATHNAME', 'outbox_figures_sum_1_0';
COMMENT ON FUNCTION outbox.figures_sum IS
'The sum of outbox.figures.entries, one behind the other, of the endpoints whose numbers are wanted, in their order, or '
'(NULL) of all: of each endpoint apart, or as one entry (NULL: there are none)';

CREATE FUNCTION outbox.figures_of(entries bytea, OUT endpoint_id int4, OUT tenant text, OUT delivered int8,
    OUT failed_attempts int8) RETURNS SETOF record
LANGUAGE C IMMUTABLE STRICT ROWS 64 AS 'MODULE_PATHNAME', 'outbox_figures_of_1_0';
COMMENT ON FUNCTION outbox.figures_of IS 'outbox.figures.entries as rows, with the counts that a bill has';

CREATE FUNCTION outbox.figures_shown(entries bytea) RETURNS jsonb
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_figures_shown_1_0';
COMMENT ON FUNCTION outbox.figures_shown IS 'The sum of outbox.figures.entries, as it is shown';

-- An hour that is not made yet is read from its five minutes.
-- The plan is made once in a session.  Rows of some endpoints are read by the key, and of all by the time.
CREATE FUNCTION outbox.figures(endpoint text DEFAULT NULL, tenant text DEFAULT NULL, bucket interval DEFAULT '1 hour',
    from_time timestamptz DEFAULT now() - interval '1 day', to_time timestamptz DEFAULT now()) RETURNS SETOF jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET jit = off
SET extra_float_digits = 1 SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    width CONSTANT float8 := extract(epoch FROM bucket);
    hourly CONSTANT bool := width >= 3600;
    zero CONSTANT timestamptz := '2000-01-01';
    ids int4[];
    blocks int4[];
BEGIN
    PERFORM outbox.check_tenant(tenant);
    IF bucket IS NULL OR from_time IS NULL OR to_time IS NULL THEN
        RAISE EXCEPTION '% must not be null', CASE WHEN bucket IS NULL THEN 'bucket' WHEN from_time IS NULL THEN 'from_time' ELSE 'to_time' END
            USING ERRCODE = 'null_value_not_allowed',
                  COLUMN = CASE WHEN bucket IS NULL THEN 'bucket' WHEN from_time IS NULL THEN 'from_time' ELSE 'to_time' END,
                  HINT = 'Leave it out for buckets of an hour, and for the last day.';
    ELSIF width NOT BETWEEN 300 AND 7776000 OR extract(month FROM bucket) + extract(year FROM bucket) <> 0
          OR width::int8 % (CASE WHEN hourly THEN 3600 ELSE 300 END) <> 0 OR width <> width::int8 THEN
        RAISE EXCEPTION 'invalid bucket %', bucket
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'bucket',
                  HINT = 'Use a multiple of 5 minutes below an hour, or a multiple of an hour up to 90 days.';
    ELSIF NOT isfinite(from_time) OR NOT isfinite(to_time) OR from_time < zero OR to_time > zero + interval '1000 years'
          OR extract(epoch FROM to_time) - extract(epoch FROM from_time) > 2200 * width THEN
        RAISE EXCEPTION 'more than 2200 buckets'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = CASE WHEN isfinite(from_time) > isfinite(to_time) THEN 'to_time' ELSE 'from_time' END,
                  HINT = 'Use a larger bucket, or times that are closer to each other.';
    END IF;
    IF endpoint IS NOT NULL THEN
        SELECT array_agg(s.endpoint_id) INTO ids FROM outbox.endpoint_settings s
        WHERE s.name = endpoint AND (figures.tenant IS NULL OR s.tenant = figures.tenant);
        PERFORM outbox.require_endpoint(endpoint, ids IS NOT NULL, tenant);
    ELSIF tenant IS NOT NULL THEN
        SELECT COALESCE(array_agg(s.endpoint_id ORDER BY s.endpoint_id), '{}') INTO ids
        FROM outbox.endpoint_settings s WHERE s.tenant = figures.tenant;
    END IF;
    blocks := ARRAY(SELECT DISTINCT i.id / 64 FROM unnest(ids) i (id));
    from_time := date_bin(bucket, from_time, zero);
    RETURN QUERY
    WITH hours AS MATERIALIZED (
        SELECT min(r.at) AS since, COALESCE(max(r.at) + interval '1 hour', '-infinity') AS until
        FROM outbox.figures r WHERE hourly AND r.piece IN (3, 4, 5)),
    fives AS MATERIALIZED (
        SELECT min(r.at) AS since, COALESCE(max(r.at) + interval '5 min', '-infinity') AS until
        FROM outbox.figures r WHERE r.piece IN (0, 1, 2) AND r.at >= (SELECT h.until FROM hours h)),
    widths (piece, turn, width, since, until) AS (
        SELECT 3, interval '45 days', interval '1 hour', greatest(from_time, h.since), least(to_time, h.until) FROM hours h
        UNION ALL
        SELECT 0, interval '1 day', interval '5 min', greatest(from_time, f.since), least(to_time, f.until) FROM fives f),
    turns (piece, width, since, until) AS (
        SELECT (k.piece + extract(epoch FROM t.at - zero)::int8 / extract(epoch FROM k.turn)::int8 % 3)::int2, k.width,
               greatest(k.since, t.at), least(k.until, t.at + k.turn)
        FROM widths k CROSS JOIN generate_series(date_bin(k.turn, k.since, zero), k.until - interval '1 us', k.turn) t (at))
    SELECT jsonb_build_object('at', date_bin(bucket, b.at, zero)) || outbox.figures_shown(string_agg(b.entries, ''))
    -- a bytea has 1 GB at most, so buckets of one time are added up first
    FROM (SELECT f.at, outbox.figures_sum(string_agg(f.entries, ''), ids, false) AS entries
          FROM turns t CROSS JOIN LATERAL (
              SELECT r.at, r.entries FROM outbox.figures r
              WHERE ids IS NOT NULL AND r.piece = t.piece AND r.block = ANY (blocks)
              AND r.at = ANY (ARRAY(SELECT generate_series(t.since, t.until - interval '1 us', t.width)))
              UNION ALL
              SELECT r.at, r.entries FROM outbox.figures r
              WHERE ids IS NULL AND r.piece = t.piece AND r.at >= t.since AND r.at < t.until) f
          GROUP BY f.at) b
    GROUP BY date_bin(bucket, b.at, zero) HAVING count(b.entries) > 0 ORDER BY date_bin(bucket, b.at, zero);
END $$;
COMMENT ON FUNCTION outbox.figures IS
'Figures of an endpoint, of a tenant or (NULL) of all from one time to another, by buckets of five minutes or '
'more: below an hour of the last two days, else of 90 days';

CREATE FUNCTION outbox.tenant_usage(from_time timestamptz, to_time timestamptz DEFAULT now(),
    OUT tenant text, OUT delivered int8, OUT failed_attempts int8) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE EXCEPTION '% must not be null', CASE WHEN $1 IS NULL THEN 'from_time' ELSE 'to_time' END
            USING ERRCODE = 'null_value_not_allowed', COLUMN = CASE WHEN $1 IS NULL THEN 'from_time' ELSE 'to_time' END,
                  HINT = 'Pass the times between which the hours of the bill began.';
    END IF;
    RETURN QUERY
    WITH hours (made) AS MATERIALIZED (
        SELECT COALESCE(max(f.at) + interval '1 hour', '-infinity') FROM outbox.figures f WHERE f.piece IN (3, 4, 5))
    SELECT e.tenant, sum(e.delivered)::int8, sum(e.failed_attempts)::int8
    FROM (SELECT f.entries FROM outbox.figures f WHERE f.piece IN (3, 4, 5) AND f.at >= $1 AND f.at < $2
          UNION ALL
          SELECT f.entries FROM outbox.figures f WHERE f.piece IN (0, 1, 2) AND f.at >= (SELECT h.made FROM hours h)
          AND date_trunc('hour', f.at, 'UTC') >= $1 AND date_trunc('hour', f.at, 'UTC') < $2) f
    CROSS JOIN LATERAL outbox.figures_of(f.entries) e
    WHERE e.tenant IS NOT NULL
    GROUP BY e.tenant ORDER BY e.tenant;
END $$;
COMMENT ON FUNCTION outbox.tenant_usage IS
'Deliveries to each tenant, and failed attempts, in the hours that began between two times';
