"""What each screen shows: the questions to the database, and nothing else.

Each function takes a Session and the fields of the address, and returns what its template needs.
"""

import collections
import copy
import datetime
import json
from urllib.parse import urlencode

from . import advice, chart, words
from .actions import FAILED, GOING, Form, Refused
from .database import Answer

PAGE = 50
FEW = 20
MANY = 500          # endpoints whose tenants a search looks at
NEWEST = 20000      # events that a search without an index looks at
COUNTED = 1000      # of the newest dead letters, those that are counted by reason, and among which one reason is looked for
SHOWN = 20000       # bytes of a payload on a page


def whole(text):
    """A number of an address, or None."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 15 else None


def limit(rows, n=PAGE):
    """Rows of a question that asked for one more than a page, and whether there are more."""
    return rows[:n], len(rows) > n


async def figures(session, endpoint=None, tenant=None):
    """Charts of the last six hours, by the clock of the database."""
    answer = await session.read("SELECT n.now, f FROM (SELECT now()) n LEFT JOIN outbox.figures(%s, %s, '5 min', now() - interval '6 hours') f"
                                " ON true", endpoint, tenant)
    if answer.problem:
        return answer
    step = datetime.timedelta(minutes=5)
    kept = {datetime.datetime.fromisoformat(r["f"]["at"]): r["f"] for r in answer.rows if r["f"]}
    now = answer.row["now"]
    last = now.replace(minute=now.minute // 5 * 5, second=0, microsecond=0) - step
    times = [last - step * n for n in range(71, -1, -1)]

    def column(name, empty, factor=1.0):
        found = [kept[t].get(name) if t in kept else empty for t in times]
        return [(t, v * factor if v is not None else None) for t, v in zip(times, found)]
    drawn = [chart.line(column("delivered", 0, 1 / 300), "Delivered", lambda v: words.number(round(v, 1)) + "/s"),
             chart.line(column("failed_attempts", 0, 1 / 300), "Failed attempts", lambda v: words.number(round(v, 1)) + "/s"),
             chart.line(column("latency_p99_ms", None, 0.001), "Latency (p99)", words.seconds),
             chart.line(column("oldest_pending_s", None), "Oldest waits", words.seconds),
             chart.line(column("memory_bytes", None), "Memory", words.size)]
    return Answer([c for c in drawn if c])


def verdict(status, figure, endpoints):
    """Is everything well?  (kind, sentence, why)."""
    if not status:
        return "unknown", "It is not known whether events are delivered.", ""
    if status["state"] == "standby":
        return "unknown", "This server is a standby: it sends nothing.", words.STATES["standby"]
    if status["state"] != "running":
        said = status["reason"] or words.STATES.get(status["state"], "")
        return "bad", "Nothing is sent: the state is %s." % status["state"], said
    troubled = sum(figure.get(("outbox_endpoints", s), 0) for s in ("backing_off", "disabled", "held"))
    late = [e for e in endpoints.rows if e["state"] == "active" and e["oldest_pending_age"]
            and e["oldest_pending_age"] > datetime.timedelta(minutes=5)]
    dead = figure.get(("outbox_deliveries", "dead"), 0)
    if status["held_steps"]:
        return "bad", "Events are delivered, but a part of the work is on hold.", status["reason"] or ""
    if troubled:
        stopped = [e for e in endpoints.rows if e["state"] in ("backing_off", "disabled", "held")]
        said = ["%s: %s." % (e["endpoint"], e["reason"] or e["last_error"] or e["state"]) for e in stopped[:3]]
        return "warn", "Events are delivered, but not to %s." % words.count(troubled, "endpoint"), \
            " ".join(said) + (" The list of endpoints has the others." if troubled > len(stopped) else " The others are below." if troubled > 3 else "")
    if late:
        return "warn", "Events are delivered, but %s more than five minutes behind." % words.count(len(late), "endpoint is", "endpoints are"), \
            "%s: the oldest has waited for %s" % (late[0]["endpoint"], words.seconds(late[0]["oldest_pending_age"]))
    if dead:
        return "warn", "Events are delivered, and %s for a decision." % words.count(dead, "dead letter waits", "dead letters wait"), \
            ", ".join("%s: %s" % (e["endpoint"], words.number(e["dead"])) for e in endpoints.rows if e["dead"])
    if status["reason"]:
        return "warn", "Events are delivered.", status["reason"]
    paused = figure.get(("outbox_endpoints", "paused"), 0)
    return "good", "All is well: events are delivered%s." % (
        ", and %s" % words.count(paused, "endpoint is paused", "endpoints are paused") if paused else ""), ""


async def overview(session, _):
    """Is everything well, and where not."""
    # Not retained_by, which looks at each of 20,000 endpoints.  The endpoints in trouble have what they retain.
    status = await session.read("SELECT state, reason, log_bytes, held_steps FROM outbox.status")
    metrics = await session.read("SELECT name, labels, value FROM outbox.metrics(20)")
    figure, troubled = {}, []
    for row in metrics.rows:
        labels = row["labels"] or {}
        if "endpoint" not in labels:
            figure[row["name"], next(iter(labels.values()), "")] = row["value"]
        elif row["name"] == "outbox_endpoint_state" and row["value"]:
            troubled.append(labels["endpoint"])
    endpoints = await session.read("SELECT * FROM outbox.stats WHERE endpoint = ANY (%s)", troubled)
    rank = {"held": 0, "disabled": 1, "backing_off": 2, "unverified": 4, "paused": 4}
    endpoints.rows.sort(key=lambda e: (rank.get(e["state"], 3 if e["reason"] or e["dead"] else 5 if e["retrying"] or e["blocked"] else 6), -(e["dead"] or 0), e["endpoint"]))
    problem = status.problem or metrics.problem or endpoints.problem
    kind, sentence, why = ("unknown", "It is not known whether events are delivered.", problem) if problem \
        else verdict(status.row, figure, endpoints)
    holder = max(endpoints.rows, key=lambda e: e["retained_bytes"] or 0, default=None)
    return {"status": status, "metrics": metrics, "figure": figure, "holder": holder if holder and holder["retained_bytes"] else None, "endpoints": endpoints, "verdict": (kind, sentence, why),
            "total": sum(v for (n, _), v in figure.items() if n == "outbox_endpoints"), "charts": await session.database.kept(figures, least=60)}


async def listed(session, state, part, after):
    """Endpoints by name, one more than a page.  One in a state is found by looking at each."""
    return await session.read(
        "SELECT * FROM outbox.stats WHERE endpoint > %s AND (%s = '' OR state = %s) AND (%s = '' OR endpoint ILIKE %s OR tenant ILIKE %s)"
        " ORDER BY endpoint LIMIT %s", after, state, state, part, *["%" + part.replace("\\", "").replace("%", "\\%") + "%"] * 2, PAGE + 1)


async def endpoints(session, q):
    """All endpoints by name, a page at a time."""
    state, part, after = q.get("state"), q.get("q"), q.get("after")
    found = await (session.database.kept(listed, state, part, after) if state else listed(session, state, part, after))
    answer = copy.copy(found)
    answer.rows, more = limit(found.rows)
    following = "/endpoints?" + urlencode({"state": state, "q": part, "after": answer.rows[-1]["endpoint"]}) if more else None
    return {"endpoints": answer, "state": state, "part": part, "following": following, "states": words.ENDPOINT_STATES}


async def changes(session, name):
    """The newest changes of an endpoint, each setting with its former and its new value."""
    answer = await session.read("SELECT at, actor, role, action, before, after FROM outbox.endpoint_audit WHERE endpoint = %s"
                                " ORDER BY change_id DESC LIMIT 20", name)
    for row in answer.rows:
        before, after = row["before"] or {}, row["after"] or {}
        row["changed"] = [(n, *(words.spans(json.dumps(v[n], ensure_ascii=False)) if n in v else "" for v in (before, after)))
                          for n in sorted({**before, **after}) if row["action"] != "create" or n in ("url", "topics", "filter")]
    return answer


def progress(row, q):
    """How far an action is that led to this page: words, how many are done, of how many."""
    of, going = whole(q.get("of")), GOING.get(q.get("going"))
    if not of or not going or not row or any(row[n] is None for n in going[1]):
        return None
    left = sum(row[n] for n in going[1]) - (whole(q.get("left")) or 0)
    return {"name": going[0], "done": of - max(0, min(of, left)), "of": of}


async def endpoint(session, q):
    """One endpoint: how it is doing, its settings, its changes, its newest deliveries."""
    name, status = q.need("endpoint"), q.get("status")
    row = await session.read("SELECT * FROM outbox.stats WHERE endpoint = %s", name)
    if not row.problem and not row.row:
        raise Refused("There is no endpoint %s. It may have been dropped." % name)
    deliveries = await session.read("SELECT * FROM outbox.deliveries_page(%s, status => %s, before => %s, page_size => %s)",
                                    name, status or None, q.get("before") or None, FEW)
    cursor = deliveries.rows[-1]["cursor"] if deliveries.rows else None
    if deliveries.rows and deliveries.rows[-1]["event_id"] is None:
        deliveries.rows.pop()
    elif len(deliveries.rows) < FEW:
        cursor = None
    more = "?" + urlencode({"status": status, "before": cursor}) if cursor else None
    return {"name": name, "stats": row, "status": status, "going": progress(row.row, q), "deliveries": deliveries, "following": more,
            "settings": await session.read("SELECT *, filter::text AS filter_text, config::text AS config_text, metadata::text AS metadata_text"
                                           " FROM outbox.endpoints WHERE name = %s", name),
            "audit": await changes(session, name), "attempts": await session.read("SELECT * FROM outbox.attempts_page(%s, page_size => 10)", name),
            "replays": await session.read("SELECT * FROM outbox.replay_progress WHERE endpoint = %s ORDER BY started_at DESC LIMIT 5", name),
            "charts": await figures(session, name), "means": words.ENDPOINT_STATES, "statuses": words.STATUSES}


EVENT = """
SELECT id, created_at, expires_at, topic, type, key, tenant, headers::text AS headers_text, content_type, test_of, forgotten,
       octet_length(payload::text) AS payload_size, left(CASE WHEN octet_length(payload::text) < %s THEN jsonb_pretty(payload)
       ELSE payload::text END, %s) AS payload_text, octet_length(body) AS body_size, encode(substring(body, 1, 256), 'hex') AS body_hex
FROM outbox.all_events WHERE id = %s::uuid"""


async def event_of(session, event):
    """What an event holds, as far as a page shows it."""
    answer = await session.read(EVENT, SHOWN, SHOWN, event)
    for row in answer.rows:
        shown = row["body_hex"] or ""
        row["hex"] = "\n".join(" ".join(shown[i:i + 2] for i in range(n, min(n + 32, len(shown)), 2)) for n in range(0, len(shown), 32))
        row["cut"] = (row["payload_size"] or 0) >= SHOWN or (row["body_size"] or 0) > 256
    return answer


def lane(delivery, attempts):
    """The attempts of a delivery, and the next one, on a line of time."""
    begin = end = delivery["created_at"]
    marks = []
    for a in attempts:
        marks.append((a["started_at"], a["duration_ms"] / 1000, "good" if not a["error"] else "bad"))
        end = max(end, a["started_at"] + datetime.timedelta(milliseconds=a["duration_ms"]))
    if delivery["next_attempt_at"]:
        marks.append((delivery["next_attempt_at"], 0, "next"))
        end = max(end, delivery["next_attempt_at"])
    return {"picture": chart.lane(marks, begin, end), "begin": begin, "end": end} if marks else None


# The delivery that another one waits behind: the first of its key that failed, or of all where the order is strict.
HEAD = """
SELECT h.event_id, h.status, h.topic, h.last_error, h.next_attempt_at
FROM (SELECT * FROM outbox.deliveries_page(%s, status => 'retrying', page_size => 1000)
      UNION ALL SELECT * FROM outbox.deliveries_page(%s, status => 'dead', page_size => 1000)) h
WHERE h.seq < %s AND (%s = 'strict' OR h.key = %s) ORDER BY h.status = 'dead', h.seq LIMIT 1"""


async def delivery(session, q):
    """One event at one endpoint: what was sent and answered, and what comes next."""
    name, event = q.need("endpoint"), q.event()
    found = await session.read("SELECT * FROM outbox.deliveries WHERE event_id = %s::uuid AND endpoint = %s", event, name)
    if not found.problem and not found.row:
        raise Refused("%s has no delivery of this event. See the event itself: /event/%s says at which endpoints it is, and why not here." % (name, event))
    attempts = await session.read("SELECT * FROM outbox.attempts_page(%s, event => %s::uuid, page_size => 100)", name, event)
    attempts.rows = [a for a in attempts.rows if a["event_id"]]
    request = await session.read("SELECT r ->> 'as' AS sent_as, r ->> 'line' AS line, r ->> 'problem' AS problem, (r -> 'batch')::bool AS batch, r -> 'headers' AS headers,"
                                 " left(r ->> 'body', %s) AS body FROM outbox.delivery_request(%s, %s::uuid) r", SHOWN, name, event)
    d, head = found.row, None
    stats = (await session.read("SELECT state, reason, next_attempt_at FROM outbox.stats WHERE endpoint = %s", name)).row
    settings = (await session.read("SELECT url, format, headers, max_attempts, timeout, ordering FROM outbox.endpoints WHERE name = %s", name)).row
    if d and d["status"] == "blocked":
        head = (await session.read(HEAD, name, name, d["seq"], settings and settings["ordering"], d["key"])).row
    return {"name": name, "event_id": event, "delivery": found, "attempts": attempts, "head": head, "event": await event_of(session, event),
            "lane": lane(d, attempts.rows) if d else None, "settings": settings, "sent": request,
            "advice": advice.of_delivery(d, stats, settings, head) if d else None}


# Why an event is not for an endpoint, for those that its tenant could have.
JUDGED = """
SELECT p.name, p.topics, p.filter::text AS filter_text, p.created_at > e.created_at AS younger,
       p.tenant IS NULL OR COALESCE(p.tenant = e.tenant, false) AS tenant_matches,
       outbox.topic_in(e.topic, p.topics) AS topic_matches, outbox.filter_matches(e.payload, p.filter) AS filter_matches
FROM outbox.all_events e CROSS JOIN outbox.endpoints p
WHERE e.id = %s::uuid AND (p.tenant IS NULL OR p.tenant = e.tenant) AND p.name <> ALL (%s) ORDER BY p.tenant NULLS LAST, p.name LIMIT %s"""


# Tenants that begin as a name does.
NEAR = "SELECT DISTINCT tenant FROM (SELECT tenant FROM outbox.stats WHERE tenant LIKE %s ORDER BY tenant LIMIT 1000) s"


async def event(session, q):
    """One event: what it holds, what became of it at each endpoint, and why it is not for the others."""
    number = q.event()
    deliveries = await session.read("SELECT * FROM outbox.deliveries WHERE event_id = %s::uuid ORDER BY endpoint LIMIT %s", number, PAGE + 1)
    deliveries.rows, more = limit(deliveries.rows)
    found = await event_of(session, number)
    if not found.problem and not deliveries.problem and not found.rows and not deliveries.rows:
        raise Refused("There is no event %s. Its transaction has not committed, or was rolled back, or it was delivered and is older than what is kept." % number)
    others = await session.read(JUDGED, number, [d["endpoint"] for d in deliveries.rows], PAGE)
    tenant = found.row and found.row["tenant"]
    own = tenant and (await session.read("SELECT count(*) AS n FROM outbox.stats WHERE tenant = %s", tenant)).row
    near = await session.read(NEAR, tenant[:2].replace("\\", "").replace("%", "\\%").replace("_", "\\_") + "%") if own and not own["n"] else Answer()
    return {"event_id": number, "event": found, "deliveries": deliveries, "more": more, "others": others, "homeless": bool(own) and not own["n"],
            "like": advice.like(tenant, [r["tenant"] for r in near.rows]) if near.rows else []}


async def payload(session, q):
    """All of a payload, as it is."""
    answer = await session.read("SELECT COALESCE(convert_to(payload::text, 'UTF8'), body) AS bytes FROM outbox.all_events WHERE id = %s::uuid", q.event())
    if not answer.row or answer.row["bytes"] is None:
        raise Refused(answer.problem or "This event has no content any more.")
    return answer.row["bytes"]


SEARCH = """
WITH near AS MATERIALIZED (SELECT id, seq, created_at, topic, key, tenant FROM outbox.all_events WHERE seq < %s ORDER BY seq DESC LIMIT %s)
SELECT n.*, true AS found, NULL AS looked FROM (SELECT * FROM near WHERE key = %s OR topic = %s OR tenant = %s ORDER BY seq DESC LIMIT %s) n
UNION ALL SELECT NULL, min(seq), min(created_at), NULL, NULL, NULL, false, count(*) FROM near"""


# What became of each of some events: at how many endpoints, and one of them.  Those of its tenant come first.
WHERE = """
SELECT d.seq, d.status, d.own, count(*) AS n, min(d.endpoint) AS endpoint FROM (
    SELECT v.seq, v.status, v.endpoint, EXISTS (SELECT FROM outbox.stats s WHERE s.endpoint = v.endpoint AND s.tenant IS NOT NULL) AS own
    FROM outbox.deliveries v WHERE v.seq = ANY (%s::int8[])) d
GROUP BY 1, 2, 3 ORDER BY d.own DESC, d.status <> ALL ('{dead,retrying,blocked,pending}'), d.status"""
LATER = """
SELECT s.id, s.created_at, s.deliver_at, s.topic, s.key, s.tenant FROM (SELECT * FROM outbox.scheduled ORDER BY deliver_at LIMIT %s) s
WHERE s.key = %s OR s.topic = %s OR s.tenant = %s ORDER BY s.deliver_at LIMIT %s"""


async def tenants_like(session, asked, part):
    """Tenants of this name: the one that has it first, each with its number of endpoints, where that is known."""
    answer = await session.read("(SELECT tenant FROM outbox.stats WHERE tenant = %s LIMIT %s) UNION ALL"
                                " (SELECT tenant FROM outbox.stats WHERE tenant ILIKE %s AND tenant <> %s ORDER BY tenant LIMIT %s)",
                                asked, MANY, part, asked, MANY)
    counted = collections.Counter(r["tenant"] for r in answer.rows)
    for tenant in {asked, answer.rows[-1]["tenant"]} & set(counted) if len(answer.rows) >= MANY else ():
        counted[tenant] = None
    answer.more = len(answer.rows) >= MANY or len(counted) > FEW
    answer.rows = [{"tenant": t, "endpoints": n} for t, n in list(counted.items())[:FEW]]
    return answer


async def search(session, q):
    """Endpoints and tenants of this name, and the newest events with this key, topic or tenant."""
    asked = q.get("q")
    context = {"asked": asked, "endpoints": Answer(), "events": Answer(), "tenants": Answer(), "last": None, "go": None, "where": Answer(), "later": Answer(), "places": {}, "newest": NEWEST, "more_endpoints": False}
    if not asked:
        return context
    try:
        context["go"] = "/event/" + Form([("event", asked)]).event()
        return context
    except Refused:
        pass
    part = "%" + asked.replace("\\", "").replace("%", "\\%").replace("_", "\\_") + "%"
    found = await session.read("(SELECT * FROM outbox.stats WHERE endpoint = %s) UNION ALL"
                               " (SELECT * FROM outbox.stats WHERE endpoint ILIKE %s AND endpoint <> %s ORDER BY endpoint LIMIT %s)", asked, part, asked, FEW + 1)
    found.rows, context["more_endpoints"] = limit(found.rows, FEW)
    context["endpoints"], context["tenants"] = found, await tenants_like(session, asked, part)
    events = await session.read(SEARCH, whole(q.get("before")) or 2**63 - 1, NEWEST, asked, asked, asked, PAGE)
    last = [r for r in events.rows if not r["found"]]
    events.rows = [r for r in events.rows if r["found"]]
    context.update(events=events, last=last[0] if last else None)
    if not q.get("before"):
        context["later"] = await session.read(LATER, NEWEST, asked, asked, asked, FEW)
    if events.rows:
        context["where"] = await session.read(WHERE, [e["seq"] for e in events.rows[:FEW]])
        for row in context["where"].rows:
            context["places"].setdefault(row["seq"], []).append(row)
    return context


async def dead(session, q):
    """Dead letters: how many by reason, and the newest ones."""
    chosen = {n: q.get(n) for n in ("endpoint", "reason", "tenant")}
    groups = await session.read(
        "SELECT endpoint, reason, count(*) AS n, min(created_at) AS oldest, max(last_error) AS example FROM"
        " (SELECT endpoint, reason, created_at, last_error FROM outbox.dead_letters ORDER BY seq DESC LIMIT %s) d GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 20", COUNTED)
    total = await session.read(FAILED)
    before, reason = q.get("before"), chosen["reason"]
    if chosen["endpoint"] or chosen["tenant"]:
        # Pages have an index for this.  A row without an event has the place to go on from.
        rows = await session.read("SELECT * FROM outbox.deliveries_page(%s, %s, 'dead', %s, %s) WHERE event_id IS NULL OR %s IN ('', reason)",
                                  chosen["endpoint"] or None, chosen["tenant"] or None, before or None, PAGE, reason)
        cursor = rows.rows[-1]["cursor"] if rows.rows else None
        rows.rows = [r for r in rows.rows if r["event_id"]]
    else:
        since = whole(before) or 2**63 - 1
        rows = await session.read(
            "SELECT * FROM (SELECT event_id, seq, topic, key, tenant, endpoint, status, reason, attempts, last_error, created_at, false AS test"
            " FROM outbox.dead_letters WHERE seq < %s ORDER BY seq DESC LIMIT %s) d WHERE %s IN ('', reason) LIMIT %s",
            since, COUNTED if reason else PAGE, reason, PAGE)
        cursor = rows.rows[-1]["seq"] if len(rows.rows) == PAGE else None
        if reason and not cursor:
            looked = await session.read("SELECT count(*) AS n, min(seq) AS seq FROM (SELECT seq FROM outbox.dead_letters WHERE seq < %s"
                                        " ORDER BY seq DESC LIMIT %s) d", since, COUNTED)
            cursor = looked.row["seq"] if looked.row and looked.row["n"] == COUNTED else None
    return {"chosen": chosen, "groups": groups, "total": total, "going": progress(total.row, q), "rows": rows, "reasons": words.REASONS, "lost": advice.LOST, "counted": COUNTED,
            "following": "/dead?" + urlencode({**chosen, "before": cursor}) if cursor else None}


RANKED = """
SELECT s.*, COALESCE(u.delivered, 0) AS delivered, COALESCE(u.failed_attempts, 0) AS failed_attempts,
       COALESCE(u.failed_attempts::float8 / NULLIF(u.delivered + u.failed_attempts, 0), 0) AS share, count(*) OVER () AS of
FROM (SELECT tenant, count(*) AS endpoints, count(*) FILTER (WHERE state <> 'active') AS stopped, sum(dead)::int8 AS dead,
             sum(pending + processing + retrying + blocked)::int8 AS waiting
      FROM outbox.stats WHERE tenant IS NOT NULL GROUP BY tenant) s
LEFT JOIN outbox.tenant_usage(date_trunc('hour', now()) - interval '1 day') u USING (tenant)
ORDER BY share DESC, dead DESC NULLS LAST, tenant LIMIT 100"""


async def ranked(session):
    """The first tenants by the share of their attempts that fails."""
    return await session.read(RANKED)


async def tenants(session, _):
    """Tenants by the share of their attempts that fails."""
    return {"tenants": await session.database.kept(ranked)}


async def tenant(session, q):
    """One tenant as it sees itself: its endpoints and its newest deliveries."""
    name = q.need("name")
    answer = await session.read("SELECT * FROM outbox.stats WHERE tenant = %s ORDER BY state = 'active', endpoint LIMIT %s", name, PAGE)
    deliveries = await session.read("SELECT * FROM outbox.deliveries_page(tenant => %s, page_size => %s)", name, PAGE)
    deliveries.rows = [d for d in deliveries.rows if d["event_id"]]
    return {"name": name, "endpoints": answer, "deliveries": deliveries, "charts": await figures(session, None, name),
            "limits": await session.read("SELECT max_in_flight, rate_limit, max_kept, max_kept_bytes, max_kept_age FROM outbox.tenant_limits(%s)", name)}


async def behind(session):
    """The endpoints that are farthest behind."""
    return await session.read("SELECT endpoint, state, retained_bytes, oldest_pending_age FROM outbox.stats WHERE retained_bytes > 0"
                              " ORDER BY retained_bytes DESC LIMIT 5")


async def sinks(session):
    """How many endpoints each kind of receiver has."""
    return await session.read("SELECT substring(url FROM '^(https?|[a-z0-9]+:aws|[a-z0-9]+)') AS sink, count(*) AS endpoints"
                              " FROM outbox.endpoints GROUP BY 1 ORDER BY 2 DESC")


async def system(session, _):
    """Workers, steps on hold, what was set aside, sources, sinks and space."""
    # Not retained_by, for which each endpoint is looked at.
    return {"status": await session.read(
                "SELECT state, reason, log_bytes, oldest_retained_at, retention, attempts_bytes, attempts_retention, parked_bytes, scheduled,"
                " unmatched FROM outbox.status"),
            "workers": await session.read("SELECT * FROM outbox.workers ORDER BY datname, worker"),
            "steps": await session.read("SELECT * FROM outbox.held_steps ORDER BY since LIMIT 200"),
            "aside": await session.read("SELECT * FROM outbox.set_aside ORDER BY failed_at DESC LIMIT 200"),
            "sources": await session.read("SELECT * FROM outbox.sources ORDER BY name"),
            "replays": await session.read("SELECT * FROM outbox.replay_progress WHERE finished_at IS NULL ORDER BY started_at LIMIT 200"),
            "forgets": await session.read("SELECT * FROM outbox.forget_progress ORDER BY requested_at DESC LIMIT 20"),
            "audit": await changes(session, ""), "sinks": await session.database.kept(sinks), "retained": await session.database.kept(behind),
            "states": words.STATES}


async def catalogue(session, _):
    """The topics that are described."""
    return {"types": await session.read("SELECT topic, description, schema::text AS schema_text, jsonb_pretty(example) AS example_text, changed_at"
                                        " FROM outbox.event_types ORDER BY topic LIMIT 1000")}


async def replay(session, q):
    """How far a replay is."""
    name, number, of = q.need("endpoint"), q.need("replay"), q.get("of")
    answer = await session.read("SELECT * FROM outbox.replay_progress WHERE endpoint = %s AND replay_id::text = %s", name, number)
    if not answer.problem and not answer.row:
        raise Refused("There is no such replay any more.")
    waits = await session.read("SELECT retrying, blocked, state FROM outbox.stats WHERE endpoint = %s", name)
    return {"name": name, "number": number, "of": whole(of), "replay": answer, "waits": waits.row}


SCREENS = {
    "/": ("overview.html", overview), "/endpoints": ("endpoints.html", endpoints), "/endpoint/{endpoint}": ("endpoint.html", endpoint),
    "/delivery/{endpoint}/{event}": ("delivery.html", delivery), "/event/{event}": ("event.html", event), "/payload/{event}": (None, payload),
    "/search": ("search.html", search), "/dead": ("dead.html", dead), "/tenants": ("tenants.html", tenants), "/tenant": ("tenant.html", tenant),
    "/system": ("system.html", system), "/catalogue": ("catalogue.html", catalogue), "/replay/{endpoint}/{replay}": ("replay.html", replay),
}
