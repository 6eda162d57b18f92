"""A shop with psycopg alone, see doc/orm.md."""

import os

import psycopg
from psycopg.types.json import Jsonb

print("version", psycopg.__version__)
connection = psycopg.connect(autocommit=True)
if "PGBOUNCER" in os.environ:
    connection = psycopg.connect(autocommit=True, prepare_threshold=None)

# By function
with connection.transaction():
    order = connection.execute("INSERT INTO orders (customer) VALUES ('ada') RETURNING id").fetchone()[0]
    event = connection.execute(
        "SELECT outbox.emit('order.created', %s, key => %s)", [Jsonb({"order": order}), order]
    ).fetchone()[0]
    print("created", event)

# By INSERT
insert = "INSERT INTO outbox.outgoing (topic, key, payload, headers) VALUES (%s, %s, %s, %s) RETURNING id"
with connection.transaction():
    values = ["order.paid", str(order), Jsonb({"order": order}), Jsonb({"x-tenant": "acme"})]
    event = connection.execute(insert, values).fetchone()[0]
    read = "SELECT topic, headers, (SELECT count(*) FROM outbox.outgoing) FROM outbox.outgoing WHERE id = %s"
    topic, headers, count = connection.execute(read, [event]).fetchone()
    print("paid", event, topic, headers["x-tenant"], count)
    print(
        "label",
        connection.execute(
            "SELECT outbox.emit_bytes('label.printed', %s, %s)", [b"%PDF-", "application/pdf"]
        ).fetchone()[0],
    )

# Many at once
with connection.transaction(), connection.cursor() as cursor:
    events = [("order.packed", "k", Jsonb({"order": n}), None) for n in (1, 2, 3)]
    cursor.executemany(insert, events, returning=True)
    ids = [cursor.fetchone()[0]]
    while cursor.nextset():
        ids.append(cursor.fetchone()[0])
    print("packed", *ids)

# COPY
with connection.transaction(), connection.cursor() as cursor:
    with cursor.copy("COPY outbox.events (topic, key, payload) FROM STDIN") as copy:
        for n in (1, 2, 3):
            copy.write_row(("order.counted", "k", Jsonb({"order": n})))

# A savepoint
with connection.transaction():
    connection.execute("SELECT outbox.emit('order.shipped', %s)", [Jsonb({"order": order})])
    with connection.transaction():
        connection.execute("SELECT outbox.emit('order.lost', %s)", [Jsonb({"order": order})])
        raise psycopg.Rollback()

# A rollback
with connection.transaction():
    connection.execute("INSERT INTO orders (customer) VALUES ('bob')")
    connection.execute("SELECT outbox.emit('order.cancelled', '{}')")
    raise psycopg.Rollback()
connection.close()
