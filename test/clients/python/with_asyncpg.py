"""A shop with SQLAlchemy over asyncpg, see doc/orm.md."""

import asyncio
import json
import os
import uuid

import asyncpg
from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from with_psycopg import Order, OutgoingEvent

URL = "postgresql+asyncpg://"


async def main():
    print("version", asyncpg.__version__)
    engine = create_async_engine(URL, poolclass=NullPool)
    if "PGBOUNCER" in os.environ:
        engine = create_async_engine(
            URL,
            poolclass=NullPool,
            connect_args={
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"s{uuid.uuid4()}",
            },
        )

    # By function
    async with AsyncSession(engine) as session, session.begin():
        order = Order(customer="ada")
        session.add(order)
        await session.flush()
        order_id = order.id
        payload = literal({"order": order.id}, JSONB)
        print("created", await session.scalar(select(func.outbox.emit("order.created", payload, order.id))))

    # Mapped
    async with AsyncSession(engine) as session, session.begin():
        event = OutgoingEvent(
            topic="order.paid", key=str(order_id), payload={"order": order_id}, headers={"x-tenant": "acme"}
        )
        session.add(event)
        await session.flush()
        await session.refresh(event)
        count = await session.scalar(select(func.count()).select_from(OutgoingEvent))
        print("paid", event.id, event.topic, event.headers["x-tenant"], count)
        label = OutgoingEvent(topic="label.printed", body=b"%PDF-", content_type="application/pdf")
        session.add(label)
        await session.flush()
        print("label", label.id)

    # Many at once
    async with AsyncSession(engine) as session, session.begin():
        events = [OutgoingEvent(topic="order.packed", key="k", payload={"order": n}) for n in (1, 2, 3)]
        session.add_all(events)
        await session.flush()
        print("packed", *[event.id for event in events])

    # COPY
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(select(1))  # SQLAlchemy sends BEGIN before its own first statement only
        connection = await (await session.connection()).get_raw_connection()
        await connection.driver_connection.copy_records_to_table(
            "events",
            schema_name="outbox",
            columns=["topic", "key", "payload"],
            records=[("order.counted", "k", json.dumps({"order": n})) for n in (1, 2, 3)],
        )

    # A savepoint
    async with AsyncSession(engine) as session, session.begin():
        session.add(OutgoingEvent(topic="order.shipped", payload={"order": order_id}))
        savepoint = await session.begin_nested()
        session.add(OutgoingEvent(topic="order.lost", payload={"order": order_id}))
        await session.flush()
        await savepoint.rollback()

    # A rollback
    async with AsyncSession(engine) as session:
        session.add_all([Order(customer="bob"), OutgoingEvent(topic="order.cancelled", payload={})])
        await session.flush()
        connection = await (await session.connection()).get_raw_connection()
        await connection.driver_connection.copy_records_to_table(
            "events", schema_name="outbox", columns=["topic", "payload"], records=[("order.lost", "{}")]
        )
        await session.rollback()


asyncio.run(main())
