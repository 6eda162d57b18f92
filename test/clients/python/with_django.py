"""A shop with Django, see doc/orm.md."""

import io
import json
import os

import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "DISABLE_SERVER_SIDE_CURSORS": True,
        }
    },
    INSTALLED_APPS=["shop"],
    USE_TZ=True,
)
django.setup()

from django.db import connection, transaction  # noqa: E402
from shop.models import Order, OutgoingEvent  # noqa: E402

print("version", django.__version__)

# By function
with transaction.atomic():
    order = Order.objects.create(customer="ada")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT outbox.emit('order.created', %s, key => %s)",
            [json.dumps({"order": order.id}), order.id],
        )
        print("created", cursor.fetchone()[0])

# Mapped
with transaction.atomic():
    event = OutgoingEvent.objects.create(
        topic="order.paid", key=str(order.id), payload={"order": order.id}, headers={"x-tenant": "acme"}
    )
    event.refresh_from_db()
    print("paid", event.id, event.topic, event.headers["x-tenant"], OutgoingEvent.objects.count())
    label = OutgoingEvent.objects.create(topic="label.printed", body=b"%PDF-", content_type="application/pdf")
    print("label", label.id)

# Many at once
with transaction.atomic():
    OutgoingEvent.objects.bulk_create(
        [OutgoingEvent(topic="order.packed", key="k", payload={"order": n}) for n in (1, 2, 3)]
    )
    print("packed", *OutgoingEvent.objects.order_by("id").values_list("id", flat=True))

# COPY
with transaction.atomic(), connection.cursor() as cursor:
    with cursor.copy("COPY outbox.events (topic, key, payload) FROM STDIN") as copy:
        for n in (1, 2, 3):
            copy.write_row(("order.counted", "k", json.dumps({"order": n})))

# A savepoint
with transaction.atomic():
    OutgoingEvent.objects.create(topic="order.shipped", payload={"order": order.id})
    try:
        with transaction.atomic():
            OutgoingEvent.objects.create(topic="order.lost", payload={"order": order.id})
            raise RuntimeError("taken back")
    except RuntimeError:
        pass

# A rollback
try:
    with transaction.atomic():
        Order.objects.create(customer="bob")
        OutgoingEvent.objects.create(topic="order.cancelled", payload={})
        raise RuntimeError("taken back")
except RuntimeError:
    pass

# What makes models from tables, and tables from models
if "PGBOUNCER" not in os.environ:
    models, sql = io.StringIO(), io.StringIO()
    call_command("inspectdb", stdout=models, include_views=True)
    print("inspectdb", "Orders" in models.getvalue(), "outbox" in models.getvalue().lower())
