#!/usr/bin/env python3
"""The history checker sees each violation in histories made by hand, and no others (TAP)."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ.get("OUTBOX_TOP", "."), "test", "tools"))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tools"))

from check_history import check  # noqa: E402

count = 0
failures = 0


def emitted(event_id, key, n, outcome="committed", **more):
    return dict(id=event_id, key=key, n=n, outcome=outcome, **more)


class Journal:
    """Requests in the order of their arrival, each in a round of its own
    unless said otherwise."""

    def __init__(self):
        self.lines = []
        self.round = 0

    def sent(self, event_id, status=200, path="/ok", same_round=False,
             body="b", signature="valid", wall=0, **headers):
        if not same_round:
            self.round += 1
        self.lines.append(dict(request=len(self.lines) + 1, path=path,
                               id=event_id, status=status, sha256=body,
                               signature=signature, wall=wall,
                               headers={name.replace("_", "-"): value
                                        for name, value in headers.items()},
                               round="1.%d" % self.round))
        return self

    def batch(self, *events, status=200, failed=(), path="/ok", body="b",
              batch_id="batch"):
        """Events, each as "id" or as ("id", "key")."""
        self.sent(batch_id, status, path, body=body)
        events = [e if isinstance(e, tuple) else (e, e[0]) for e in events]
        self.lines[-1].update(
            failed=list(failed),
            batch=[dict(id=i, key=k, sha256="b") for i, k in events])
        return self

    def answered(self, request, status=200, wall=0):
        self.round += 1
        self.lines.append(dict(answer=request, status=status, wall=wall,
                               round="1.%d" % self.round))
        return self


def case(name, producer, journal, expected, **options):
    """expected: {kind: count}; every other kind must be absent."""
    global count, failures
    count += 1
    found, _ = check(producer, journal.lines, **options)
    got = {kind: len(items) for kind, items in found.items() if items}
    if got == expected:
        print("ok %d - %s" % (count, name))
    else:
        failures += 1
        print("not ok %d - %s: %r instead of %r" % (count, name, got, expected))


a1, a2, a3 = (emitted("a1", "a", 1), emitted("a2", "a", 2),
              emitted("a3", "a", 3))
b1 = emitted("b1", "b", 1)
free = emitted("f1", None, 1)

case("a clean history", [a1, b1, a2, free],
     Journal().sent("a1").sent("b1").sent("a2").sent("f1"), {})
case("keys do not wait for each other", [a1, a2, b1],
     Journal().sent("b1", 500).sent("a1").sent("a2").sent("b1"), {})

case("never sent", [a1, b1], Journal().sent("a1"), {"lost": 1})
case("sent, never acknowledged", [a1], Journal().sent("a1", 503), {"lost": 1})
case("answered after the sender was gone", [a1], Journal().sent("a1", None),
     {"lost": 1})
case("lost at one of two endpoints", [a1],
     Journal().sent("a1", path="/x").sent("b1", path="/y"),
     {"lost": 1, "phantom": 1})
case("an endpoint that got nothing at all", [a1], Journal().sent("a1"),
     {"lost": 1}, endpoints=["/ok", "/other"])
case("only the endpoints that an event is meant for",
     [emitted("a1", "a", 1, endpoints=["/ok"]), b1],
     Journal().sent("a1").sent("b1").sent("b1", path="/other"), {},
     endpoints=["/ok", "/other"])
case("dead is not lost", [a1, b1], Journal().sent("a1", 500).sent("b1"), {},
     dead=[("/ok", "a1")])
case("dead at one endpoint only", [a1],
     Journal().sent("a1", 500).sent("a1", 500, path="/x"), {"lost": 1},
     dead=[("/ok", "a1")])

case("rolled back and sent", [emitted("a1", "a", 1, "rolledback")],
     Journal().sent("a1"), {"phantom": 1})
case("rolled back and attempted", [emitted("a1", "a", 1, "rolledback")],
     Journal().sent("a1", 500), {"phantom": 1})
case("it was not emitted", [a1], Journal().sent("a1").sent("z9"),
     {"phantom": 1})
case("the log has it not, but the database has", [a1],
     Journal().sent("a1").sent("z9"), {}, exists={"a1", "z9"})
case("in doubt, and gone", [emitted("a1", "a", 1, "unknown"), b1],
     Journal().sent("b1"), {}, exists={"b1"})
case("in doubt, gone, and sent", [emitted("a1", "a", 1, "unknown"), b1],
     Journal().sent("a1").sent("b1"), {"phantom": 1}, exists={"b1"})
case("in doubt, there, and not sent", [emitted("a1", "a", 1, "unknown"), b1],
     Journal().sent("b1"), {"lost": 1}, exists={"a1", "b1"})
case("the last word about an id counts",
     [emitted("a1", "a", 1, "unknown"), a1], Journal().sent("a1"), {})
case("rolled back, and in the database",
     [emitted("a1", "a", 1, "rolledback"), b1], Journal().sent("b1"),
     {"phantom": 1}, exists={"a1", "b1"})
case("committed, and gone", [a1, b1], Journal().sent("b1"), {"vanished": 1},
     exists={"b1"})
case("committed asynchronously, and gone", [a1, b1], Journal().sent("b1"), {},
     exists={"b1"}, async_commit=True)
case("committed asynchronously, gone, and sent", [a1, b1],
     Journal().sent("a1").sent("b1"), {"phantom": 1}, exists={"b1"},
     async_commit=True)

case("acknowledged twice", [a1], Journal().sent("a1").sent("a1"),
     {"duplicate": 1})
case("acknowledged three times", [a1],
     Journal().sent("a1").sent("a1").sent("a1"), {"duplicate": 2})
case("a retry is no duplicate", [a1], Journal().sent("a1", 500).sent("a1"), {})
case("a late answer and another", [a1],
     Journal().sent("a1", None).answered(1).sent("a1"), {"duplicate": 1})

case("the wrong way round", [a1, a2], Journal().sent("a2").sent("a1"),
     {"out of order": 1})
case("sent while the predecessor failed", [a1, a2],
     Journal().sent("a1", 500).sent("a2").sent("a1"), {"out of order": 1})
case("sent together with the predecessor", [a1, a2],
     Journal().sent("a1").sent("a2", same_round=True), {"out of order": 1})
case("attempted too early, though it failed", [a1, a2],
     Journal().sent("a2", 500).sent("a1").sent("a2"), {"out of order": 1})
case("sent while the predecessor's answer was on its way", [a1, a2],
     Journal().sent("a1", None).sent("a2").answered(1), {"out of order": 1})
case("sent after the late answer", [a1, a2],
     Journal().sent("a1", None).answered(1).sent("a2"), {})
case("a repeated predecessor is a duplicate, not a disorder", [a1, a2],
     Journal().sent("a1").sent("a2").sent("a1").sent("a2"), {"duplicate": 2})
case("what was rolled back leaves no gap",
     [a1, emitted("a2", "a", 2, "rolledback"), a3],
     Journal().sent("a1").sent("a3"), {})
case("a dead predecessor is skipped", [a1, a2, a3],
     Journal().sent("a1").sent("a2", 500).sent("a3"), {},
     dead=[("/ok", "a2")])
case("but not its own predecessor", [a1, a2, a3],
     Journal().sent("a2", 500).sent("a3").sent("a1"), {"out of order": 1},
     dead=[("/ok", "a2")])
case("without a key there is no order", [free, emitted("f2", None, 2)],
     Journal().sent("f2").sent("f1"), {})
case("a predecessor that never arrived", [a1, a2], Journal().sent("a2"),
     {"lost": 1, "out of order": 1})

case("two bodies", [a1], Journal().sent("a1", 500).sent("a1", body="c"),
     {"mutated": 1})
case("a wrong signature", [a1], Journal().sent("a1", signature="invalid"),
     {"bad signature": 1})
case("a missing signature", [a1], Journal().sent("a1", signature="missing"),
     {"bad signature": 1})

case("of another format", [a1],
     Journal().sent("a1", 500).sent("a1", body="c", content_type="x/y"), {})

# a death at 100 s that lasted until 105, and a window of 2 s
death = dict(deaths=[dict(wall=100, until=105, window=2)])
for when, unexplained in ((97, 1), (99, 0), (104, 0), (106, 1)):
    case("repeated after an answer at %d s" % when, [a1],
         Journal().sent("a1", wall=when).sent("a1", wall=200),
         {"duplicate": 1, **({"unexplained": 1} if unexplained else {})}, **death)
case("a death explains one repetition", [a1],
     Journal().sent("a1", wall=99).sent("a1", wall=200).sent("a1", wall=300),
     {"duplicate": 2, "unexplained": 1}, **death)
case("without any death", [a1], Journal().sent("a1").sent("a1", wall=1),
     {"duplicate": 1, "unexplained": 1}, deaths=[])
case("an answer that may have come too late", [a1],
     Journal().sent("a1", None, wall=10).answered(1, wall=13).sent("a1", wall=20),
     {"duplicate": 1}, deaths=[], timeout=2)
case("one that was in time", [a1],
     Journal().sent("a1", None, wall=10).answered(1, wall=11).sent("a1", wall=20),
     {"duplicate": 1, "unexplained": 1}, deaths=[], timeout=2)
case("a receiver that was slow to read", [a1],
     Journal().sent("a1", wall=14, webhook_timestamp="10").sent("a1", wall=20),
     {"duplicate": 1}, deaths=[], timeout=2)
case("a replay is no duplicate", [a1],
     Journal().sent("a1").sent("a1", outbox_redelivery="replay"), {}, deaths=[])
case("nor is one that was retried by hand", [a1],
     Journal().sent("a1").sent("a1", 500, outbox_redelivery="replay")
     .sent("a1", outbox_redelivery="retry"), {}, deaths=[])
case("nor if that was before it was sent", [a1],
     Journal().sent("a1").sent("a1", outbox_redelivery="retry"), {}, deaths=[],
     replayed={("/ok", "a1")})
case("a retry by hand of what was delivered is", [a1],
     Journal().sent("a1").sent("a1", outbox_redelivery="retry"),
     {"duplicate": 1, "unexplained": 1}, deaths=[])

case("dead for a while", [a1, a2],
     Journal().sent("a1", 500).sent("a2").sent("a1"), {}, skipped=[("/ok", "a1")])
case("no order is promised here", [a1, a2], Journal().sent("a2").sent("a1"), {},
     unordered=["/ok"])

perhaps = emitted("p1", "a", 2, endpoints=[], may=["/ok"])
case("it may arrive", [a1, perhaps, a3],
     Journal().sent("a1").sent("p1").sent("a3"), {})
case("or not", [a1, perhaps, a3], Journal().sent("a1").sent("a3"), {})
case("but in order", [a1, perhaps, a3],
     Journal().sent("a1").sent("a3").sent("p1"), {"out of order": 1})
case("and wholly", [a1, perhaps], Journal().sent("a1").sent("p1", 500), {"lost": 1})
case("not elsewhere", [a1, perhaps],
     Journal().sent("a1").sent("a1", path="/x").sent("p1", path="/x"), {"phantom": 1})

case("the database agrees", [a1, perhaps], Journal().sent("a1").sent("p1"), {},
     delivered={("/ok", "a1"), ("/ok", "p1")})
case("it does not know of a delivery", [a1], Journal().sent("a1"),
     {"misreported": 1}, delivered=set())
case("it claims one", [a1, perhaps], Journal().sent("a1"),
     {"misreported": 1}, delivered={("/ok", "a1"), ("/ok", "p1")})

case("one asynchronous commit among others", [emitted("a1", "a", 1, **{"async": True}), b1],
     Journal(), {"vanished": 1}, exists=set(), endpoints=["/ok"])

def batches(name, journal, expected, **options):
    case("batches: " + name, [a1, a2, a3, b1, free], journal, expected, **options)


batches("a clean one", Journal().batch("a1", "b1", "a2", ("f1", None), "a3"), {})
batches("one after the other",
        Journal().batch("a1", "b1").batch("a2", "a3", batch_id="2").sent("f1"), {})
batches("answered later",
        Journal().batch("a1", "b1", "a2", "a3", ("f1", None), status=None).answered(1), {})
batches("never answered", Journal().batch("a1", "b1", "a2", "a3", status=None).sent("f1"),
        {"lost": 4})
batches("the wrong way round", Journal().batch("a2", "b1", "a1", "a3").sent("f1"),
        {"out of order": 1})
batches("before its predecessor's answer",
        Journal().batch("a1", "b1", status=None).batch("a2", "a3", batch_id="2")
        .answered(1).sent("f1"), {"out of order": 1})
batches("named, and those behind it: together again",
        Journal().batch("a1", "a2", "b1", "a3", failed=["a2"])
        .batch("a2", "a3", batch_id="2").sent("f1"), {})
batches("named, and with a newcomer behind it",
        Journal().batch("a1", "a2", "b1", failed=["a1"])
        .batch("a1", "a2", "a3", failed=["a1"], batch_id="2")
        .batch("a1", "a2", "a3", batch_id="3").sent("f1"), {})
batches("named, and never again",
        Journal().batch("a1", "a2", "b1", "a3", failed=["a2"]).sent("f1"), {"lost": 2})
batches("named, and the one behind it first",
        Journal().batch("a1", "a2", "b1", "a3", failed=["a2"]).sent("a3").sent("a2")
        .sent("f1"), {"out of order": 1})
batches("behind a named one of another key",
        Journal().batch("a1", "b1", "a2", "a3", failed=["b1"]).sent("b1").sent("f1"), {})
batches("failed as a whole, then one by one",
        Journal().batch("a1", "a2", "b1", "a3", status=500).sent("a1").sent("a2")
        .sent("a3").sent("b1").sent("f1"), {})
batches("failed as a whole, then out of order",
        Journal().batch("a1", "a2", "b1", "a3", status=500).sent("a2").sent("a1")
        .sent("a3").sent("b1").sent("f1"), {"out of order": 1})
batches("delivered twice", Journal().batch("a1", "b1", "a2", "a3", ("f1", None)).sent("a1"),
        {"duplicate": 1})
batches("twice, with other bytes",
        Journal().batch("a1", "a2", "a3", status=500).batch("a1", "a2", "a3", body="c")
        .batch("b1", ("f1", None), batch_id="2"), {"mutated": 1})

ONCE_MORE = [{"path": "/ok", "id": "a1", "since": 10}]
case("asked for again, and it came", [a1, a2, a3],
     Journal().sent("a1", wall=1).sent("a2", wall=2).sent("a3", wall=3).sent("a1", wall=11),
     {}, again=ONCE_MORE, deaths=[])
case("asked for again, and it did not come", [a1, a2, a3],
     Journal().sent("a1", wall=1).sent("a2", wall=2).sent("a3", wall=3), {"lost": 1}, again=ONCE_MORE, deaths=[])
case("asked for again, and it came twice", [a1, a2, a3],
     Journal().sent("a1", wall=1).sent("a2", wall=2).sent("a3", wall=3).sent("a1", wall=11).sent("a1", wall=12),
     {"duplicate": 1, "unexplained": 1}, again=ONCE_MORE, deaths=[])
case("it need not come again", [a1, a2, a3],
     Journal().sent("a1", wall=1).sent("a2", wall=2).sent("a3", wall=3),
     {}, again=[dict(ONCE_MORE[0], since=None)], deaths=[])

count += 1
try:
    check([emitted("a1", "a", 1, "unknown")], [])
    failures += 1
    print("not ok %d - doubt without the database's word is refused" % count)
except ValueError:
    print("ok %d - doubt without the database's word is refused" % count)

print("1..%d" % count)
sys.exit(1 if failures else 0)
