#!/usr/bin/env python3
"""The history checker: compares what a producer committed with what a receiver
saw, and decides whether the promises were kept.

    check_history.py --producer FILE --journal FILE [--exists FILE]
                     [--dead FILE] [--skipped FILE] [--delivered FILE]
                     [--deaths FILE] [--replayed FILE] [--again FILE] [--timeout S]
                     [--endpoint /path ...]
                     [--unordered /path ...] [--max-duplicates N]
                     [--async-commit] [--show N]

producer   JSON lines {"id", "key", "n", "outcome"}, outcome one of committed,
           rolledback, unknown; the last line about an id counts.  "n" rises with
           each emit of a key.  "endpoints": the paths it must reach, when not
           all; "may": others that it may reach.  "async": a crash may undo the
           commit.
journal    as receiver.py writes it.  A path is an endpoint.  A batch counts as
           its members; those that a 2xx named in batchItemFailures, and later
           ones of the same key, were not answered with 2xx.
exists     ids that the database has after recovery, one a line: they decide
           what became of "unknown".
dead       lines "path id": gave up visibly, or taken back, so neither lost nor
           in the way of its successors.
skipped    lines "path id": was dead for a while, so not in their way either.
delivered  lines "path id": what the database says was delivered.
deaths     JSON lines {"wall", "until", "window"}: a sender, or this receiver,
           died at a time and was back at another; what was delivered in the
           window (seconds) before may be repeated.
replayed   lines "path id": a replay of it was asked for.  It says so itself when
           it comes, unless a retry was asked for meanwhile.
again      JSON lines {"path", "id", "since"}: from that time on it has to be
           answered once more, without saying that it is a repetition; since
           null: it may be.
timeout    an answer that took so long (seconds) may have come too late.
unordered  a path at which no order is promised.

What it looks for, per endpoint:

lost          committed, not dead, and never answered with 2xx, or not again
phantom       sent, and not committed
vanished      reported as committed, and not in the database (with
              --async-commit such an event counts as never committed)
duplicate     answered with 2xx again; allowed up to --max-duplicates, or where a
              death explains it: the earlier answer lies between its time minus
              the window and the moment when the sender was back.  A replay that
              was asked for does not count.
unexplained   a duplicate that no death explains (with --deaths)
out of order  sent although its predecessor of the same key had not been
              answered with 2xx before.  Only first sendings are judged: after a
              crash a repeated predecessor is a duplicate, not a disorder.  In a
              batch it may stand behind its predecessor; but the sending that
              succeeds has to come after its predecessor's, or in the same batch
              behind it.
mutated       one id, of an event or of a batch, and two different bodies (of
              one content type)
misreported   delivered, or not, and the database says otherwise (with
              --delivered)
bad signature a signature that the receiver found missing or wrong

Exit status: 0 when all is well, 1 otherwise, 2 when it cannot tell.
"""

import argparse
import json
import sys
from collections import defaultdict

KINDS = ("lost", "phantom", "vanished", "duplicate", "unexplained",
         "out of order", "mutated", "bad signature", "misreported")


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

    __slots__ = ("first_sent", "sendings", "acked", "acked_sent", "acks",
                 "answers", "hashes", "signatures", "replayed")

    def __init__(self):
        self.first_sent = None      # the Sending
        self.sendings = []          # in batches
        self.acked = None           # (position in the journal, round)
        self.acked_sent = None      # the Sending that was acknowledged
        self.acks = 0
        self.answers = []           # of each: (when it came, when it was answered)
        self.hashes = set()
        self.signatures = set()
        self.replayed = False


class Sending:
    """One event in one request."""

    __slots__ = ("position", "round", "index")

    def __init__(self, position, round_, index):
        self.position = position    # in the journal
        self.round = round_
        self.index = index          # in the batch


def members(line):
    """(id, hash, acknowledged if the answer is a 2xx) of each event."""
    if "batch" not in line:
        yield line["id"], line["sha256"], True
        return
    named = set(line["failed"])
    stuck = set()
    for member in line["batch"]:
        key = member["key"]
        failed = member["id"] in named or (key is not None and key in stuck)
        if failed:
            stuck.add(key)
        yield member["id"], member["sha256"], not failed


def read_journal(lines, replayed):
    """{path: {id: Delivery}} of a journal, and {(path, batch id): hashes}."""
    endpoints = defaultdict(lambda: defaultdict(Delivery))
    batches = defaultdict(set)
    waiting = {}

    def ack(sent, position, line, came):
        if line["status"] is None or not 200 <= line["status"] < 300:
            return
        for delivery, sending in sent:
            if delivery.acked is None:
                delivery.acked = (position, line["round"])
                delivery.acked_sent = sending
            delivery.acks += 1
            delivery.answers.append((came, line.get("wall")))

    for position, line in enumerate(lines):
        if "answer" in line:
            incarnation = line["round"].split(".")[0]
            sent, came = waiting.pop((incarnation, line["answer"]), ((), None))
            ack(sent, position, line, came)
            continue
        headers = line.get("headers", {})
        kind = headers.get("content-type")
        sent = []
        for index, (event_id, digest, may_be) in enumerate(members(line)):
            delivery = endpoints[line["path"]][event_id]
            sending = Sending(position, line["round"], index)
            if delivery.first_sent is None:
                delivery.first_sent = sending
            if "batch" in line:
                delivery.sendings.append(sending)
            delivery.hashes.add(("batch" in line, kind, digest))
            delivery.signatures.add(line.get("signature"))
            if delivery.acks > 0:
                redelivery = headers.get("outbox-redelivery")
                delivery.replayed = (delivery.replayed or redelivery == "replay"
                                     or (line["path"], event_id) in replayed)
                if delivery.replayed and redelivery in ("replay", "retry"):
                    continue        # asked for
            if may_be:
                sent.append((delivery, sending))
        if "batch" in line:
            batches[(line["path"], line["id"])].add((kind, line["sha256"]))
        # The receiver may have been slow to read it.
        came = line.get("wall")
        if "webhook-timestamp" in headers:
            came = min(came, int(headers["webhook-timestamp"]) + 1)
        if line["status"] is None:
            incarnation = line["round"].split(".")[0]
            waiting[(incarnation, line["request"])] = (sent, came)
        else:
            ack(sent, position, line, came)
    return endpoints, batches


def bodies(hashes):
    """Are there two of one kind?"""
    return len(hashes) > len({h[:-1] for h in hashes})


def precedes(first, sending):
    """Was it acknowledged before that sending, or by the same answer?"""
    if first is None or first.acked is None:
        return False
    if first.acked_sent.position == sending.position:
        return first.acked_sent.index < sending.index
    return first.acked[0] <= sending.position and first.acked[1] != sending.round


def together(first, sending):
    """Do they stand in one batch, one behind the other?"""
    return (first is not None and
            any(s.position == sending.position and s.index < sending.index
                for s in first.sendings))


class Deaths:
    """When repetitions are to be expected, and how many."""

    def __init__(self, deaths, timeout):
        self.deaths = deaths
        self.timeout = timeout
        self.bound = 0
        self.oldest = 0             # repeated answer, seconds before the death

    def explain(self, came, answered):
        """How long before the death that explains it; None: nothing does."""
        if self.timeout and answered - came >= self.timeout:
            return 0
        ages = [death["wall"] - answered for death in self.deaths
                if death["wall"] - death["window"] <= answered <= death["until"]]
        return min(ages, default=None)

    def count(self, delivery, again):
        """How often a delivery is repeated without explanation; so often it was asked for."""
        explained = [self.explain(*answer) for answer in delivery.answers]
        self.bound += sum(e is not None for e in explained)
        self.oldest = max([self.oldest] + [e for e in explained[:-1] if e is not None])
        return max(explained[:-1].count(None) - again, 0)


def check(producer, journal, exists=None, dead=(), endpoints=None,
          async_commit=False, skipped=(), delivered=None, deaths=None,
          timeout=None, unordered=(), replayed=(), again=()):
    """{kind: [(endpoint, id or None, words)]} and a summary of numbers."""
    found = {kind: [] for kind in KINDS}
    deliveries, batches = read_journal(journal, replayed)
    paths = list(endpoints) if endpoints else sorted(deliveries)
    dead = set(dead)
    skipped = set(skipped) | dead
    if deaths is not None:
        deaths = Deaths(deaths, timeout)
    asked = defaultdict(list)
    for line in again:
        asked[(line["path"], line["id"])].append(line["since"])

    events = {}
    for line in producer:
        events.setdefault(line["id"], {}).update(line)
    committed = {}
    unknown = 0
    undone = 0
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
                undone += 1
                if not async_commit and not event.get("async"):
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
            times = asked[(path, event_id)]
            if delivery.acks > 1 + len(times):
                found["duplicate"].extend(
                    [(path, event_id, "%d times" % delivery.acks)]
                    * (delivery.acks - 1 - len(times)))
            if deaths is not None and delivery.answers:
                found["unexplained"].extend(
                    [(path, event_id, "answered at %s"
                      % ", ".join("%.3f" % a[1] for a in delivery.answers))]
                    * deaths.count(delivery, len(times)))
            if bodies(delivery.hashes):
                found["mutated"].append((path, event_id, "%d bodies"
                                         % len(delivery.hashes)))
            for bad in delivery.signatures & {"invalid", "missing"}:
                found["bad signature"].append((path, event_id, bad))

        lanes = defaultdict(list)
        for event_id, event in committed.items():
            delivery = at.get(event_id)
            acked = delivery is not None and delivery.acks > 0
            if event.get("endpoints") is not None and path not in event["endpoints"]:
                if delivery is None:
                    if delivered is not None and (path, event_id) in delivered:
                        found["misreported"].append((path, event_id, "not sent"))
                    continue
                if path not in event.get("may", ()):
                    found["phantom"].append((path, event_id, "not meant for it"))
                    continue
            if (path, event_id) not in dead:
                if not acked:
                    found["lost"].append((path, event_id, "never sent"
                                          if delivery is None else
                                          "sent, never acknowledged"))
                since = max((t for t in asked[(path, event_id)] if t is not None), default=None)
                if acked and since is not None and all(a[1] < since for a in delivery.answers):
                    found["lost"].append((path, event_id, "not sent again since %.3f" % since))
                if delivered is not None and acked != ((path, event_id) in delivered):
                    found["misreported"].append(
                        (path, event_id, "delivered" if acked else "not delivered"))
            if event.get("key") is not None and (path, event_id) not in skipped:
                lanes[event["key"]].append((event["n"], event_id))

        for key, lane in lanes.items() if path not in unordered else ():
            lane.sort()
            for (n, before), (m, after) in zip(lane, lane[1:]):
                second = at.get(after)
                if second is None:
                    continue
                first = at.get(before)
                if (not (precedes(first, second.first_sent) or
                         together(first, second.first_sent)) or
                        (second.acked is not None and
                         not precedes(first, second.acked_sent))):
                    found["out of order"].append(
                        (path, after, "key %s: %s was sent before %s was"
                         " delivered" % (key, m, n)))

    for (path, batch_id), hashes in batches.items():
        if path in paths and bodies(hashes):
            found["mutated"].append((path, batch_id, "%d bodies of a batch"
                                     % len(hashes)))

    numbers = {
        "events": len(events),
        "committed": len(committed),
        "unknown": unknown,
        "undone": undone,
        "dead": len(dead),
        "bound": deaths.bound if deaths is not None else None,
        "oldest": deaths.oldest if deaths is not None else None,
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
    parser.add_argument("--skipped")
    parser.add_argument("--delivered")
    parser.add_argument("--deaths")
    parser.add_argument("--replayed")
    parser.add_argument("--again")
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--endpoint", action="append")
    parser.add_argument("--unordered", action="append", default=[])
    parser.add_argument("--max-duplicates", type=int, default=0)
    parser.add_argument("--async-commit", action="store_true")
    parser.add_argument("--show", type=int, default=10)
    options = parser.parse_args()

    def pairs(path):
        if not path:
            return None
        with open(path) as file:
            return {tuple(line.split()) for line in file if line.strip()}

    exists = None
    if options.exists:
        with open(options.exists) as file:
            exists = set(file.read().split())

    try:
        found, numbers = check(
            read_lines(options.producer), read_lines(options.journal, whole=False),
            exists, pairs(options.dead) or (), options.endpoint,
            options.async_commit, pairs(options.skipped) or (),
            pairs(options.delivered),
            list(read_lines(options.deaths)) if options.deaths else None,
            options.timeout, options.unordered, pairs(options.replayed) or (),
            list(read_lines(options.again)) if options.again else ())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2

    print("%(events)d events emitted, %(committed)d committed (%(unknown)d were"
          " in doubt, %(undone)d asynchronous ones gone with a crash),"
          " %(delivered)d deliveries to %(endpoints)d endpoints, %(dead)d dead or"
          " cancelled" % numbers)
    if options.deaths:
        options.max_duplicates = numbers["bound"]
        print("the oldest answer that was repeated came %.3f s before a death"
              % numbers["oldest"])
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
