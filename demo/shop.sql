-- The demo's shop: orders, and an event for each in the same transaction.

CREATE TABLE customers (
    name        text PRIMARY KEY
);
INSERT INTO customers VALUES ('Ada'), ('Blaise'), ('Charles'), ('Donald'),
    ('Edsger'), ('Frances'), ('Grace');

CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer    text NOT NULL REFERENCES customers,
    article     text NOT NULL,
    total       numeric(10, 2) NOT NULL,
    event_id    uuid NOT NULL       -- only for the proof at the end
);

-- What was rolled back, so that the proof can look for it.
CREATE TABLE declined (
    event_id    uuid PRIMARY KEY
);

-- All there is to it: one INSERT, one emit, one transaction.  The customer is
-- the key, and whoever emits holds the customer's row: so each customer's orders
-- arrive in order, however many tills there are.
CREATE FUNCTION place_order(customer text, article text, total numeric)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    event uuid;
BEGIN
    PERFORM FROM customers c WHERE c.name = place_order.customer FOR UPDATE;
    event := outbox.emit('order.created',
                         jsonb_build_object('customer', customer,
                                            'article', article,
                                            'total', total),
                         key => customer);
    INSERT INTO orders (customer, article, total, event_id)
    VALUES (place_order.customer, place_order.article, place_order.total, event);
    RETURN event;
END
$$;

-- A busy day.  Every seventh order or so the card is declined, and the
-- transaction rolls back: order and event alike never happened.
CREATE PROCEDURE open_for_business(seconds numeric) LANGUAGE plpgsql AS $$
DECLARE
    closing timestamptz := clock_timestamp() + seconds * interval '1 second';
    names text[] := ARRAY(SELECT name FROM customers);
    articles text[] := '{teapot,bicycle,telescope,umbrella,typewriter}';
    event uuid;
BEGIN
    WHILE clock_timestamp() < closing LOOP
        event := place_order(names[1 + floor(random() * 7)::int],
                             articles[1 + floor(random() * 5)::int],
                             round((5 + random() * 95)::numeric, 2));
        IF random() < 1 / 7.0 THEN
            ROLLBACK;
            INSERT INTO declined VALUES (event);
        END IF;
        COMMIT;
        PERFORM pg_sleep(0.02 + random() * 0.04);
    END LOOP;
END
$$;
