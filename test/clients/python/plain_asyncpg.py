"""A shop with asyncpg alone, see doc/orm.md."""

import asyncio
import json
import os

import asyncpg


async def main():
    print("version", asyncpg.__version__)
    connection = await asyncpg.connect(statement_cache_size=0 if "PGBOUNCER" in os.environ else 100)

    # By function
    async with connection.transaction():
        order = await connection.fetchval("INSERT INTO orders (customer) VALUES ('ada') RETURNING id")
        payload = json.dumps({"order": order})
        event = await connection.fetchval(
            "SELECT outbox.emit('order.created', $1, key => $2::bigint)", payload, order
        )
        print("created", event)

    # By INSERT
    insert = "INSERT INTO outbox.outgoing (topic, key, payload, headers) VALUES ($1, $2, $3, $4) RETURNING id"
    async with connection.transaction():
        headers = json.dumps({"x-tenant": "acme"})
        event = await connection.fetchval(insert, "order.paid", str(order), payload, headers)
        row = await connection.fetchrow(
            "SELECT topic, headers, (SELECT count(*) FROM outbox.outgoing) FROM outbox.outgoing WHERE id = $1", event
        )
        print("paid", event, row["topic"], json.loads(row["headers"])["x-tenant"], row["count"])
        label = "SELECT outbox.emit_bytes('label.printed', $1, $2)"
        print("label", await connection.fetchval(label, b"%PDF-", "application/pdf"))

    # Many at once
    async with connection.transaction():
        events = [("order.packed", "k", json.dumps({"order": n}), None) for n in (1, 2, 3)]
        rows = await connection.fetchmany(insert, events)
        print("packed", *[row["id"] for row in rows])

    # COPY
    async with connection.transaction():
        await connection.copy_records_to_table(
            "events",
            schema_name="outbox",
            columns=["topic", "key", "payload"],
            records=[("order.counted", "k", json.dumps({"order": n})) for n in (1, 2, 3)],
        )

    # A savepoint
    async with connection.transaction():
        await connection.execute("SELECT outbox.emit('order.shipped', $1)", payload)
        savepoint = connection.transaction()
        await savepoint.start()
        await connection.execute("SELECT outbox.emit('order.lost', $1)", payload)
        await savepoint.rollback()

    # A rollback
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO orders (customer) VALUES ('bob')")
    await connection.execute("SELECT outbox.emit('order.cancelled', '{}')")
    await transaction.rollback()
    await connection.close()


asyncio.run(main())
