#!/usr/bin/python3
"""A consumer of a topic of Kafka, as doc/inbox.md has it: one effect for each event.

consumer.py BROKERS TOPIC GROUP CONNECTION NAME

It notes each record that it reads in the table readings, in the transaction that does the work.
With NAIVE=1 it does not ask inbox.accept(), and takes each record for new.
"""

import os
import signal
import sys

import psycopg2
from confluent_kafka import Consumer


def consume(db, message, name, naive):
    headers = {key: value.decode() for key, value in message.headers() or []}
    event = headers["outbox-id"]
    with db, db.cursor() as sql:  # one transaction, committed at its end
        new = True
        if not naive:
            sql.execute("SELECT inbox.accept('shop', %s::text)", (event,))
            new = sql.fetchone()[0]
        if new:
            sql.execute("INSERT INTO effects (event_id, body) VALUES (%s, %s)", (event, message.value().decode()))
        sql.execute(
            'INSERT INTO readings (event_id, consumer, partition, "offset", new) VALUES (%s, %s, %s, %s, %s)',
            (event, name, message.partition(), message.offset(), new),
        )


def main():
    brokers, topic, group, connection, name = sys.argv[1:]
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    db = psycopg2.connect(connection)
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "topic.metadata.refresh.interval.ms": 1000,
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    every = int(os.environ.get("COMMIT_EVERY", "50"))
    read = 0
    while not stopping:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue  # nothing there, or a broker that is away: librdkafka goes on by itself
        consume(db, message, name, "NAIVE" in os.environ)
        read += 1
        if read % every == 0:
            consumer.commit(message, asynchronous=True)  # after the work is committed
    consumer.close()


main()
