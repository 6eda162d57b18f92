------------------------------------------------------------------------
-- Limits of tenants: how much of the workers one customer may use, and how much is kept for it.
------------------------------------------------------------------------

CREATE TABLE outbox.tenant_limits_here (
    tenant          text COLLATE "C" PRIMARY KEY,  -- '': all tenants without a row of their own
    max_in_flight   int4,
    rate_limit      float4,
    max_kept        int8,
    max_kept_age    interval,
    max_kept_bytes  int8
);
COMMENT ON TABLE outbox.tenant_limits_here IS
'Limits of tenants, where outbox.set_tenant_limits() said so (NULL: as for all tenants)';

CREATE FUNCTION outbox.tenant_limits(tenant text, OUT max_in_flight int4, OUT rate_limit float4, OUT max_kept int8,
    OUT max_kept_age interval, OUT max_kept_bytes int8)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.check_tenant(tenant);
    SELECT COALESCE(own.max_in_flight, common.max_in_flight), COALESCE(own.rate_limit, common.rate_limit),
           COALESCE(own.max_kept, common.max_kept), COALESCE(own.max_kept_age, common.max_kept_age),
           COALESCE(own.max_kept_bytes, common.max_kept_bytes)
    INTO tenant_limits.max_in_flight, tenant_limits.rate_limit, tenant_limits.max_kept, tenant_limits.max_kept_age,
         tenant_limits.max_kept_bytes
    FROM (SELECT) one
    LEFT JOIN outbox.tenant_limits_here own ON own.tenant = tenant_limits.tenant
    LEFT JOIN outbox.tenant_limits_here common ON common.tenant = '';
END $$;
COMMENT ON FUNCTION outbox.tenant_limits IS
'Limits of all endpoints of a tenant together, and of the deliveries that are kept for them (tenant NULL: a '
'tenant without limits of its own)';

-- NULL leaves a value as it is.
CREATE FUNCTION outbox.set_tenant_limits(tenant text DEFAULT NULL, max_in_flight int4 DEFAULT NULL,
    rate_limit float4 DEFAULT NULL, reset bool DEFAULT false, max_kept int8 DEFAULT NULL,
    max_kept_age interval DEFAULT NULL, max_kept_bytes int8 DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox.check_tenant(tenant);
    IF max_in_flight < 1 THEN
        RAISE EXCEPTION 'invalid max_in_flight %', max_in_flight
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use at least 1. With reset => true there is no limit.';
    ELSIF rate_limit NOT BETWEEN real '0.0001' AND 1000000 THEN
        RAISE EXCEPTION 'invalid rate_limit %', rate_limit
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use 0.0001 to 1000000 requests per second. With reset => true there is no limit.';
    ELSIF max_kept < 1 THEN
        RAISE EXCEPTION 'invalid max_kept %', max_kept
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use at least 1 delivery. With reset => true there is no limit.';
    ELSIF max_kept_bytes < 1 THEN
        RAISE EXCEPTION 'invalid max_kept_bytes %', max_kept_bytes
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use at least 1 byte, for example pg_size_bytes(''10 GB''). With reset => true there is no limit.';
    ELSIF date_part('epoch', max_kept_age) NOT BETWEEN 1 AND 2147483647 THEN
        RAISE EXCEPTION 'invalid max_kept_age %', max_kept_age
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use 1 second to 68 years. With reset => true there is no limit.';
    END IF;
    IF reset THEN
        DELETE FROM outbox.tenant_limits_here l WHERE l.tenant = COALESCE(set_tenant_limits.tenant, '');
    END IF;
    IF num_nonnulls(max_in_flight, rate_limit, max_kept, max_kept_age, max_kept_bytes) > 0 THEN
        INSERT INTO outbox.tenant_limits_here AS l
        VALUES (COALESCE(tenant, ''), max_in_flight, rate_limit, max_kept, max_kept_age, max_kept_bytes)
        ON CONFLICT ON CONSTRAINT tenant_limits_here_pkey DO UPDATE
        SET max_in_flight = COALESCE(EXCLUDED.max_in_flight, l.max_in_flight),
            rate_limit = COALESCE(EXCLUDED.rate_limit, l.rate_limit),
            max_kept = COALESCE(EXCLUDED.max_kept, l.max_kept),
            max_kept_age = COALESCE(EXCLUDED.max_kept_age, l.max_kept_age),
            max_kept_bytes = COALESCE(EXCLUDED.max_kept_bytes, l.max_kept_bytes);
    END IF;
    PERFORM outbox.note_change(tenant, '', 'limits', '{}', jsonb_strip_nulls(jsonb_build_object(
        'tenant', tenant, 'max_in_flight', max_in_flight, 'rate_limit', rate_limit, 'reset', NULLIF(reset, false),
        'max_kept', max_kept, 'max_kept_age', max_kept_age, 'max_kept_bytes', max_kept_bytes)));
    -- The workers find the endpoints: one that another transaction is making is not seen here.
    PERFORM outbox.endpoint_changed(COALESCE(-1 - (hashtext(tenant) & 1023), 0));
END $$;
COMMENT ON FUNCTION outbox.set_tenant_limits IS
'Limits all endpoints of a tenant together, and the deliveries that are kept for them (tenant NULL: of each '
'tenant that has no limits of its own)';
