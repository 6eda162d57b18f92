------------------------------------------------------------------------
-- Figures that are kept of each endpoint, by five minutes for two days, and by the
-- hour for 90.
------------------------------------------------------------------------

-- Pieces 0 to 2 have buckets of five minutes and are used for a day each, 3 to 5 buckets of an
-- hour for 45 days.  Which one follows from the time, and the worker empties it before.
-- A row has the figures of endpoints that one worker serves, and whose numbers, divided by 32, are
-- its block.  An endpoint that is mostly quiet would pay for a row of its own more than for a delivery.
CREATE TABLE outbox.figures (
    piece           int2 NOT NULL,
    block           int4 NOT NULL,
    at              timestamptz NOT NULL,
    worker          int2 NOT NULL,
    endpoint_ids    int4[] NOT NULL,
    tenants         text[] COLLATE "C" NOT NULL,
    delivered       int4[] NOT NULL,
    failed          int4[] NOT NULL,
    counts          bytea[] NOT NULL,
    PRIMARY KEY (block, at, piece, worker)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.figures_0 PARTITION OF outbox.figures FOR VALUES IN (0) USING heap;
CREATE TABLE outbox.figures_1 PARTITION OF outbox.figures FOR VALUES IN (1) USING heap;
CREATE TABLE outbox.figures_2 PARTITION OF outbox.figures FOR VALUES IN (2) USING heap;
CREATE TABLE outbox.figures_3 PARTITION OF outbox.figures FOR VALUES IN (3) USING heap;
CREATE TABLE outbox.figures_4 PARTITION OF outbox.figures FOR VALUES IN (4) USING heap;
CREATE TABLE outbox.figures_5 PARTITION OF outbox.figures FOR VALUES IN (5) USING heap;
COMMENT ON TABLE outbox.figures IS
'Figures of endpoints, by five minutes for two days and by the hour for 90, dropped or not, and of the whole database (endpoint 0)';
COMMENT ON TABLE outbox.figures_0 IS 'A piece of the figures of five minutes: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_1 IS 'A piece of the figures of five minutes: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_2 IS 'A piece of the figures of five minutes: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_3 IS 'A piece of the figures of hours: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_4 IS 'A piece of the figures of hours: the pieces are used in turn';
COMMENT ON TABLE outbox.figures_5 IS 'A piece of the figures of hours: the pieces are used in turn';

CREATE FUNCTION outbox.figures_sum(counts bytea) RETURNS bytea
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_figures_sum_1_0';
COMMENT ON FUNCTION outbox.figures_sum IS
'outbox.figures.counts of several rows, one behind the other, as of one row';

CREATE FUNCTION outbox.figures_of(endpoint_ids int4[], counts bytea[], wanted int4[]) RETURNS bytea
LANGUAGE C IMMUTABLE AS 'MODULE_PATHNAME', 'outbox_figures_of_1_0';
COMMENT ON FUNCTION outbox.figures_of IS
'The counts of these endpoints, in the order of their numbers, or (NULL) of all in a row of outbox.figures, '
'one behind the other (NULL: it has none)';

CREATE FUNCTION outbox.figures_shown(counts bytea) RETURNS jsonb
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_figures_shown_1_0';
COMMENT ON FUNCTION outbox.figures_shown IS 'outbox.figures.counts of one or several rows, as they are shown';

-- The plan is made once in a session.  Few rows are read by the key, and many in a scan.
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
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'from_time',
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
    blocks := ARRAY(SELECT DISTINCT i.id / 32 FROM unnest(ids) i (id));
    from_time := date_bin(bucket, from_time, zero);
    RETURN QUERY
    SELECT jsonb_build_object('at', date_bin(bucket, b.at, zero)) || outbox.figures_shown(string_agg(b.counts, ''))
    -- a bytea has 1 GB at most, so buckets of one time are added up first
    FROM (SELECT f.at, outbox.figures_sum(string_agg(f.counts, '')) AS counts
          FROM (SELECT r.at, outbox.figures_of(r.endpoint_ids, r.counts, ids) AS counts FROM outbox.figures r
                WHERE ids IS NOT NULL AND r.block = ANY (blocks) AND r.at >= from_time AND r.at < to_time
                AND r.piece = ANY (CASE WHEN hourly THEN '{3,4,5}' ELSE '{0,1,2}' END::int2[])
                UNION ALL
                SELECT r.at, outbox.figures_of(r.endpoint_ids, r.counts, NULL) FROM outbox.figures r
                WHERE ids IS NULL AND r.at >= from_time AND r.at < to_time
                AND r.piece = ANY (CASE WHEN hourly THEN '{3,4,5}' ELSE '{0,1,2}' END::int2[])) f
          GROUP BY f.at HAVING count(f.counts) > 0) b
    GROUP BY date_bin(bucket, b.at, zero) ORDER BY date_bin(bucket, b.at, zero);
END $$;
COMMENT ON FUNCTION outbox.figures IS
'Figures of an endpoint, of a tenant or (NULL) of all from one time to another, by buckets of five minutes or '
'more: below an hour of the last two days, else of 90 days';

CREATE FUNCTION outbox.tenant_usage(from_time timestamptz, to_time timestamptz DEFAULT now(),
    OUT tenant text, OUT delivered int8, OUT failed_attempts int8) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
SELECT e.tenant, sum(e.delivered)::int8, sum(e.failed)::int8
FROM outbox.figures f CROSS JOIN unnest(f.tenants, f.delivered, f.failed) e (tenant, delivered, failed)
WHERE f.piece IN (3, 4, 5) AND e.tenant IS NOT NULL AND f.at >= $1 AND f.at < $2
GROUP BY e.tenant ORDER BY e.tenant
$$;
COMMENT ON FUNCTION outbox.tenant_usage IS
'Deliveries to each tenant, and failed attempts, in the hours that began between two times';
