#!/usr/bin/env python3
"""The history checker: compares what a producer committed with what a receiver
saw, and decides whether the promises were kept.

    check_history.py --producer FILE --journal FILE [--exists FILE]
                     [--dead FILE] [--endpoint /path ...]
                     [--max-duplicates N] [--async-commit] [--show N]

producer   JSON lines {"id", "key", "n", "outcome"}, outcome one of committed,
           rolledback, unknown; the last line about an id counts.  "n" rises with
           each emit of a key.  "endpoints": the paths it must reach, when not
           all.
journal    as receiver.py writes it.  A path is an endpoint.
exists     ids that the database has after recovery, one a line: they decide
           what became of "unknown".
dead       lines "path id": gave up visibly, so neither lost nor in the way of
           its successors.

What it looks for, per endpoint:

lost          committed, not dead, and never answered with 2xx
phantom       sent, and not committed
vanished      reported as committed, and not in the database (with
              --async-commit such an event counts as never committed)
duplicate     answered with 2xx again; allowed up to --max-duplicates
out of order  sent although its predecessor of the same key had not been
              answered with 2xx before.  Only first sendings are judged: after a
              crash a repeated predecessor is a duplicate, not a disorder.
mutated       one id, two different bodies
bad signature a signature that the receiver found missing or wrong

Exit status: 0 when all is well, 1 otherwise, 2 when it cannot tell.
"""

import argparse
import json
import sys
from collections import defaultdict

KINDS = ("lost", "phantom", "vanished", "duplicate", "out of order", "mutated",
         "bad signature")


def read_lines(path, whole=True):
    """JSON lines.  A writer that was killed may leave a torn one: skipped when
    'whole' is false."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError:
                if whole:
                    raise SystemExit("%s:%d is not JSON" % (path, number))


class Delivery:
    """What happened to one event at one endpoint."""

    __slots__ = ("first_sent", "first_round", "acked", "acked_round", "acks",
                 "hashes", "signatures")

    def __init__(self):
        self.first_sent = None      # position in the journal
        self.first_round = None
        self.acked = None
        self.acked_round = None
        self.acks = 0
        self.hashes = set()
        self.signatures = set()


def read_journal(lines):
    """{path: {id: Delivery}} of a journal."""
    endpoints = defaultdict(lambda: defaultdict(Delivery))
    waiting = {}

    def ack(delivery, position, round_, status):
        if status is not None and 200 <= status < 300:
            delivery.acks += 1
            if delivery.acked is None:
                delivery.acked = position
                delivery.acked_round = round_

    for position, line in enumerate(lines):
        if "answer" in line:
            incarnation = line["round"].split(".")[0]
            delivery = waiting.pop((incarnation, line["answer"]), None)
            if delivery is not None:
                ack(delivery, position, line["round"], line["status"])
            continue
        delivery = endpoints[line["path"]][line["id"]]
        if delivery.first_sent is None:
            delivery.first_sent = position
            delivery.first_round = line["round"]
        delivery.hashes.add(line["sha256"])
        delivery.signatures.add(line.get("signature"))
        if line["status"] is None:
            incarnation = line["round"].split(".")[0]
            waiting[(incarnation, line["request"])] = delivery
        ack(delivery, position, line["round"], line["status"])
    return endpoints


def check(producer, journal, exists=None, dead=(), endpoints=None,
          async_commit=False):
    """{kind: [(endpoint, id or None, words)]} and a summary of numbers."""
    found = {kind: [] for kind in KINDS}
    deliveries = read_journal(journal)
    paths = list(endpoints) if endpoints else sorted(deliveries)
    dead = set(dead)

    events = {}
    for line in producer:
        events.setdefault(line["id"], {}).update(line)
    committed = {}
    unknown = 0
    for event_id, event in events.items():
        outcome = event["outcome"]
        if outcome == "unknown":
            unknown += 1
            if exists is None:
                raise ValueError("unknown outcomes, and nothing tells what"
                                 " became of them: --exists is needed")
            if event_id in exists:
                committed[event_id] = event
        elif outcome == "committed":
            if exists is not None and event_id not in exists:
                if not async_commit:
                    found["vanished"].append((None, event_id, "not in the"
                                              " database any more"))
            else:
                committed[event_id] = event
        elif exists is not None and event_id in exists:
            found["phantom"].append((None, event_id, "rolled back, and in the"
                                     " database nevertheless"))

    for path in paths:
        at = deliveries.get(path, {})
        for event_id, delivery in at.items():
            known = (event_id in committed or
                     (event_id not in events and exists is not None and
                      event_id in exists))
            if not known:
                outcome = events.get(event_id, {}).get("outcome", "never heard of")
                found["phantom"].append((path, event_id, outcome))
            if delivery.acks > 1:
                found["duplicate"].extend(
                    [(path, event_id, "%d times" % delivery.acks)]
                    * (delivery.acks - 1))
            if len(delivery.hashes) > 1:
                found["mutated"].append((path, event_id, "%d bodies"
                                         % len(delivery.hashes)))
            for bad in delivery.signatures & {"invalid", "missing"}:
                found["bad signature"].append((path, event_id, bad))

        lanes = defaultdict(list)
        for event_id, event in committed.items():
            if event.get("endpoints") and path not in event["endpoints"]:
                continue
            if (path, event_id) in dead:
                continue
            delivery = at.get(event_id)
            if delivery is None or delivery.acks == 0:
                found["lost"].append((path, event_id, "never sent"
                                      if delivery is None else
                                      "sent, never acknowledged"))
            if event.get("key") is not None:
                lanes[event["key"]].append((event["n"], event_id))

        for key, lane in lanes.items():
            lane.sort()
            for (n, before), (m, after) in zip(lane, lane[1:]):
                second = at.get(after)
                if second is None:
                    continue
                first = at.get(before)
                if (first is None or first.acked is None or
                        first.acked > second.first_sent or
                        first.acked_round == second.first_round):
                    found["out of order"].append(
                        (path, after, "key %s: %s was sent before %s was"
                         " delivered" % (key, m, n)))

    numbers = {
        "events": len(events),
        "committed": len(committed),
        "unknown": unknown,
        "endpoints": len(paths),
        "delivered": sum(1 for p in paths for d in deliveries.get(p, {}).values()
                         if d.acks),
    }
    return found, numbers


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--producer", required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--exists")
    parser.add_argument("--dead")
    parser.add_argument("--endpoint", action="append")
    parser.add_argument("--max-duplicates", type=int, default=0)
    parser.add_argument("--async-commit", action="store_true")
    parser.add_argument("--show", type=int, default=10)
    options = parser.parse_args()

    exists = None
    if options.exists:
        with open(options.exists) as file:
            exists = set(file.read().split())
    dead = []
    if options.dead:
        with open(options.dead) as file:
            dead = [tuple(line.split()) for line in file if line.strip()]

    try:
        found, numbers = check(read_lines(options.producer),
                               read_lines(options.journal, whole=False),
                               exists, dead, options.endpoint,
                               options.async_commit)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2

    print("%(events)d events emitted, %(committed)d committed (%(unknown)d were"
          " in doubt), %(delivered)d deliveries to %(endpoints)d endpoints"
          % numbers)
    bad = False
    for kind in KINDS:
        allowed = options.max_duplicates if kind == "duplicate" else 0
        count = len(found[kind])
        verdict = "ok" if count <= allowed else "VIOLATED"
        bad = bad or count > allowed
        bound = ", at most %d allowed" % allowed if allowed else ""
        print("  %-14s %6d%s  %s" % (kind, count, bound, verdict))
        if count > allowed:
            for path, event_id, words in found[kind][:options.show]:
                print("      %s %s %s" % (path or "-", event_id, words))
    if not numbers["committed"]:
        print("nothing was committed: this run proves nothing")
        return 2
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
