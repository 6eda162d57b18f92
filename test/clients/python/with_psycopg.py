"""A shop with SQLAlchemy over psycopg, see doc/orm.md."""

import json
import os
import uuid
from datetime import datetime

import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import BigInteger, DateTime, FetchedValue, Identity, Text, create_engine, func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import ObjectDeletedError
from sqlalchemy.pool import NullPool


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    customer: Mapped[str] = mapped_column(Text)


class OutgoingEvent(Base):
    __tablename__ = "outgoing"
    __table_args__ = {"schema": "outbox"}

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, server_default=FetchedValue())
    topic: Mapped[str]
    type: Mapped[str | None]
    key: Mapped[str | None]
    expires_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    headers: Mapped[dict | None] = mapped_column(JSONB(none_as_null=True))
    payload: Mapped[dict | None] = mapped_column(JSONB(none_as_null=True))
    body: Mapped[bytes | None]
    content_type: Mapped[str | None]


def include_object(object, name, type_, reflected, compare_to):
    return getattr(object, "schema", None) != "outbox"


if __name__ == "__main__":
    print("version", sqlalchemy.__version__)
    engine = create_engine("postgresql+psycopg://", poolclass=NullPool)
    if "PGBOUNCER" in os.environ:
        engine = create_engine("postgresql+psycopg://", poolclass=NullPool, connect_args={"prepare_threshold": None})

    # By function
    with Session(engine) as session, session.begin():
        order = Order(customer="ada")
        session.add(order)
        session.flush()
        order_id = order.id
        payload = literal({"order": order.id}, JSONB)
        print("created", session.scalar(select(func.outbox.emit("order.created", payload, order.id))))

    # Mapped
    with Session(engine) as session:
        event = OutgoingEvent(
            topic="order.paid", key=str(order_id), payload={"order": order_id}, headers={"x-tenant": "acme"}
        )
        session.add(event)
        session.flush()
        session.refresh(event)
        count = session.scalar(select(func.count()).select_from(OutgoingEvent))
        print("paid", event.id, event.topic, event.headers["x-tenant"], count)
        label = OutgoingEvent(topic="label.printed", body=b"%PDF-", content_type="application/pdf")
        session.add(label)
        session.flush()
        print("label", label.id)

        session.commit()
        try:
            print("afterwards", event.topic)
        except ObjectDeletedError:
            print("afterwards gone")

    # Many at once
    with Session(engine) as session, session.begin():
        events = [OutgoingEvent(topic="order.packed", key="k", payload={"order": n}) for n in (1, 2, 3)]
        session.add_all(events)
        session.flush()
        print("packed", *[event.id for event in events])

    # COPY
    with Session(engine) as session, session.begin():
        cursor = session.connection().connection.cursor()
        with cursor.copy("COPY outbox.events (topic, key, payload) FROM STDIN") as copy:
            for n in (1, 2, 3):
                copy.write_row(("order.counted", "k", json.dumps({"order": n})))

    # A savepoint
    with Session(engine) as session, session.begin():
        session.add(OutgoingEvent(topic="order.shipped", payload={"order": order_id}))
        savepoint = session.begin_nested()
        session.add(OutgoingEvent(topic="order.lost", payload={"order": order_id}))
        session.flush()
        savepoint.rollback()

    # A rollback
    with Session(engine) as session:
        session.add_all([Order(customer="bob"), OutgoingEvent(topic="order.cancelled", payload={})])
        session.flush()
        session.rollback()

    # What makes tables and migrations from models
    if "PGBOUNCER" not in os.environ:
        Base.metadata.create_all(engine)
        with engine.connect() as connection:
            for name, options in (
                ("autogenerate", {"include_object": include_object}),
                ("schemas", {"include_object": include_object, "include_schemas": True}),
                ("unfiltered", {}),
            ):
                context = MigrationContext.configure(connection, opts=options)
                changes = compare_metadata(context, Base.metadata)
                print(name, *[f"{change[0]}:{change[1].name}" for change in changes])
