-- The inbox: an id is accepted once, offsets only rise, and signatures are verified.
\set VERBOSITY terse
CREATE EXTENSION inbox;
DO $$ BEGIN PERFORM setseed(0.5); END $$;

-- Once for each source, as text or as UUID
SELECT inbox.accept('shop', 'a'), inbox.accept('shop', 'a'), inbox.accept('other', 'a'), inbox.accept('shop', 'A');
SELECT inbox.accept('shop', '01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01'::uuid) AS first,
       inbox.accept('shop', '01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01') AS as_text,
       inbox.accept('shop', '01980A5C-7D2E-7C3A-9F41-5B6C7D8E9F01'::uuid) AS uuid,
       inbox.accept('shop', '01980A5C-7D2E-7C3A-9F41-5B6C7D8E9F01') AS other_text;
SELECT inbox.accept('shop', U&'Zo\00eb'), inbox.accept('shop', repeat('x', 1024)), inbox.accept(repeat('x', 255), 'a');
SELECT left(source, 5) AS source, left(id, 40) AS id FROM inbox.accepted ORDER BY 1, 2;
BEGIN;
SELECT inbox.accept('shop', 'undone');
ROLLBACK;
SELECT inbox.accept('shop', 'undone');
BEGIN;
SAVEPOINT s;
SELECT inbox.accept('shop', 'partly');
ROLLBACK TO s;
SELECT inbox.accept('shop', 'partly');
COMMIT;

-- The caller's collation does not matter.
SELECT inbox.accept('collated' COLLATE "POSIX", 'a'), inbox.accept('collated', 'a' COLLATE "POSIX"), inbox.accept('collated', 'a'),
       inbox.accept_offset('collated' COLLATE "POSIX", 0, 5), inbox.accept_offset('collated', 0, 5);
SELECT inbox.forget_offsets('collated' COLLATE "POSIX");

-- Offsets only rise
SELECT inbox.accept_offset('orders', 0, 5), inbox.accept_offset('orders', 0, 5), inbox.accept_offset('orders', 0, 4),
       inbox.accept_offset('orders', 0, 7), inbox.accept_offset('orders', 1, 0), inbox.accept_offset('bills', 0, 0);
SELECT source, partition, "offset" FROM inbox.offsets ORDER BY 1, 2;
SELECT inbox.forget_offsets('orders'), inbox.accept_offset('orders', 0, 0);

-- Refusals, with code and hint
DO $$
DECLARE
    command text;
    state text;
    hint text;
BEGIN
    FOREACH command IN ARRAY ARRAY[
        'inbox.accept(NULL, ''a'')', 'inbox.accept(''a'', NULL::text)', 'inbox.accept(''a'', NULL::uuid)',
        'inbox.accept('''', ''a'')', 'inbox.accept(''a'', '''')',
        'inbox.accept(repeat(''x'', 256), ''a'')', 'inbox.accept(''a'', repeat(''x'', 1025))',
        'inbox.accept_offset(NULL, 0, 0)', 'inbox.accept_offset(''a'', NULL, 0)', 'inbox.accept_offset(''a'', 0, NULL)',
        'inbox.accept_offset('''', 0, 0)', 'inbox.accept_offset(''a'', -1, 0)', 'inbox.accept_offset(''a'', 0, -1001)',
        'inbox.forget_offsets(NULL)',
        'inbox.set_retention(NULL)', 'inbox.set_retention(''1 minute'')', 'inbox.set_retention(''11 years'')',
        'inbox.set_retention(''1 mon -29 days'')',
        'inbox.verify(NULL::text, ''a'', ''1'', '''', ''v1,'')', 'inbox.verify(ARRAY[NULL], ''a'', ''1'', '''', ''v1,'')',
        'inbox.verify(NULL::text[], ''a'', ''1'', '''', ''v1,'')', 'inbox.verify(''{}''::text[], ''a'', ''1'', '''', ''v1,'')',
        'inbox.verify(''secret'', ''a'', ''1'', '''', ''v1,'')', 'inbox.verify(''whsec_!'', ''a'', ''1'', '''', ''v1,'')',
        'inbox.verify(''whsec_MfKQ9r8GKYqrTwjUPD8I'', ''a'', ''1'', '''', ''v1,'')',
        'inbox.verify(''whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'', ''a'', ''1'', NULL::text, ''v1,'')',
        'inbox.verify(''whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'', ''a'', ''1'', '''', ''v1,'', NULL)',
        'inbox.verify(''whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'', ''a'', ''1'', '''', ''v1,'', ''-1 s'')']
    LOOP
        BEGIN
            EXECUTE 'SELECT ' || command;
            RAISE INFO '% is not refused', command;
        EXCEPTION WHEN data_exception THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, hint = PG_EXCEPTION_HINT;
            RAISE INFO '%: % % (%)', command, state, SQLERRM, hint;
        END;
    END LOOP;
END $$;

-- Signatures: the vectors of doc/receiving.md, then the parts of a request
SELECT v.n, inbox.verify(v.secret, v.id, v.at, v.body, v.signature, '100 years') AS good,
       inbox.verify(v.secret, v.id, v.at, v.body || '\x20'::bytea, v.signature, '100 years') AS body,
       inbox.verify(v.secret, v.id || 'x', v.at, v.body, v.signature, '100 years') AS id,
       inbox.verify(v.secret, v.id, v.at, v.body, v.signature) AS old
FROM (VALUES
    (1, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'msg_p5jXN8AQM9LWM0D4loKWxJek', '1614265330',
     convert_to('{"test": 2432232314}', 'UTF8'), 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='),
    (2, 'whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX', '01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01', '1700000000',
     '', 'v1,vEjucOszgS5ZtW/qFRdX8FILy3cnXbitENojisTIuXI='),
    (3, 'whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=', '01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01', '1760000000',
     convert_to(U&'{"type":"order.created","timestamp":"2026-01-02T03:04:05.678901Z","data":{"name":"Zo\00eb"}}', 'UTF8'),
     'v1,58cNt55ix2Zr9H6cw275si3QGqKY1KqlVPgJTHY/G3k='),
    (4, 'whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==',
     '01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01', '1760000001', decode('AP8A', 'base64'),
     'v1,4W2fgXzAN5nMxM51pBRjcSdtJCNGgvwUSclr/F0GUf0=')) v (n, secret, id, at, body, signature)
ORDER BY v.n;
-- RFC 4231, cases 2 and 6
SELECT encode(inbox.hmac_sha256('Jefe', 'what do ya want for nothing?'), 'hex');
SELECT encode(inbox.hmac_sha256(decode(repeat('aa', 131), 'hex'), 'Test Using Larger Than Block-Size Key - Hash Key First'), 'hex');
CREATE FUNCTION signed(secret text, at text, body text) RETURNS text LANGUAGE sql
RETURN 'v1,' || encode(inbox.hmac_sha256(decode(substring(secret FROM 7), 'base64'),
                                         convert_to('id.' || at || '.' || body, 'UTF8')), 'base64');
\set one '''whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'''
\set two '''whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX'''
SELECT n, inbox.verify(:one, 'id', t.at, '{"a": "b\\n"}', signed(:one, t.at, '{"a": "b\\n"}')) AS good
FROM (VALUES (0), (240), (310), (-240), (-310)) o (n), LATERAL (SELECT extract(epoch FROM now() - o.n * interval '1 s')::int8::text) t (at);
SELECT inbox.verify(:one, 'id', t.at, 'b', 'v1,AAAA ' || signed(:one, t.at, 'b') || ' v1a,xx') AS second_of_three,
       inbox.verify(ARRAY[:two, :one], 'id', t.at, 'b', signed(:one, t.at, 'b')) AS former_secret,
       inbox.verify(:two, 'id', t.at, 'b', signed(:one, t.at, 'b')) AS other_secret,
       inbox.verify(:one, 'id', t.at, 'b', signed(:one, t.at, 'b') || 'x') AS longer,
       inbox.verify(:one, 'id', t.at, 'b', left(signed(:one, t.at, 'b'), 20)) AS half,
       inbox.verify(:one, 'id', t.at, 'b', repeat('v1,x ', 10) || signed(:one, t.at, 'b')) AS eleventh
FROM (SELECT extract(epoch FROM now())::int8::text) t (at);
SELECT inbox.verify(:one, NULL, '1', '', 'v1,') AS no_id, inbox.verify(:one, 'id', NULL, '', 'v1,') AS no_time,
       inbox.verify(:one, 'id', '1', '', NULL) AS no_signature, inbox.verify(:one, 'id', '1', '', '', '100 years') AS empty,
       inbox.verify(:one, 'id', '1.5', '', 'v1,') AS fraction, inbox.verify(:one, 'id', ' 1', '', 'v1,') AS blank,
       inbox.verify(:one, 'id', repeat('9', 30), '', 'v1,') AS digits;

-- Rotation: an id of the present piece is refused after the next step, and after the one
-- that follows the retention it is not.
CREATE FUNCTION due() RETURNS text LANGUAGE sql AS
$$ UPDATE inbox.rotation SET next_step = '-infinity'; SELECT inbox.rotate() $$;
SELECT inbox.rotate();
SELECT inbox.accept('turn', 'before');
SELECT due();
SELECT state, waits_for, changes_at IS NULL AS changing FROM inbox.status;
SELECT inbox.accept('turn', 'before'), inbox.accept('turn', 'during');
SELECT id, count(*) FROM inbox.accepted WHERE source = 'turn' GROUP BY id ORDER BY id;
SELECT inbox.rotate();
SELECT inbox.accept('turn' COLLATE "POSIX", 'before'), inbox.accept('turn', 'during'), inbox.accept('turn', 'after');
SELECT inbox.rotate();
SELECT inbox.rotate();
SELECT id, count(*) FROM inbox.accepted WHERE source = 'turn' GROUP BY id ORDER BY id;
SELECT due();
SELECT inbox.accept('turn', 'before'), inbox.accept('turn', 'during'), inbox.accept('turn', 'after');
SELECT inbox.rotate();
SELECT id, count(*) FROM inbox.accepted WHERE source = 'turn' GROUP BY id ORDER BY id;
SELECT inbox.accept('turn', 'during'), inbox.accept('turn', 'after');
SELECT inbox.accept('turn', 'before') AS forgotten;
SELECT inbox.rotate();

-- accept() makes the steps by itself
UPDATE inbox.rotation SET next_step = '-infinity';
SELECT count(*) FROM generate_series(1, 300) n WHERE inbox.accept('many', n::text);
SELECT inbox.accept('many', n::text) FROM generate_series(1, 1000, 500) n;
SELECT state FROM inbox.status;

-- Times that a clock ahead has set
UPDATE inbox.rotation SET since = clock_timestamp() + interval '1 year', next_step = clock_timestamp() + interval '1 year', phase = 4;
SELECT inbox.rotate();
SELECT inbox.set_retention('30 days');
SELECT retention = '30 days' AS retention, since <= clock_timestamp() AS since, changes_at - since = retention AS after FROM inbox.status;

DROP FUNCTION due, signed;
DROP EXTENSION inbox;
SELECT count(*) FROM pg_namespace WHERE nspname = 'inbox';
