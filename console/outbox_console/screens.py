"""What each screen shows: the questions to the database, and nothing else.

Each function takes a Session and the fields of the address, and returns what its template needs.
"""

import datetime
from urllib.parse import urlencode

from . import chart, words
from .actions import Form, Refused
from .database import Answer

PAGE = 50
NEWEST = 50000      # events that a search without an index looks at


def now():
    """The present time in UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def limit(rows, n=PAGE):
    """Rows of a question that asked for one more than a page, and whether there are more."""
    return rows[:n], len(rows) > n


async def figures(session, endpoint=None, tenant=None):
    """Charts of the last six hours, where the extension keeps figures."""
    answer = await session.read("SELECT f FROM outbox.figures(%s, %s, '5 min', now() - interval '6 hours') f", endpoint, tenant)
    if answer.problem:
        return None if answer.state == "42883" else answer
    step = datetime.timedelta(minutes=5)
    kept = {datetime.datetime.fromisoformat(r["f"]["at"]): r["f"] for r in answer.rows}
    last = now().replace(minute=now().minute // 5 * 5, second=0, microsecond=0) - step
    times = [last - step * n for n in range(71, -1, -1)]

    def column(name, empty, factor=1.0):
        found = [kept[t].get(name) if t in kept else empty for t in times]
        return [(t.strftime("%H:%M UTC"), v * factor if v is not None else None) for t, v in zip(times, found)]
    drawn = [chart.line(column("delivered", 0, 1 / 300), "Delivered", lambda v: words.number(round(v, 1)) + "/s"),
             chart.line(column("failed_attempts", 0, 1 / 300), "Failed attempts", lambda v: words.number(round(v, 1)) + "/s"),
             chart.line(column("latency_p99_ms", None, 0.001), "Latency, 99 of 100", words.seconds)]
    return Answer([c for c in drawn if c])


def verdict(status, figure, endpoints):
    """Is everything well?  (kind, sentence, why)."""
    if not status:
        return "unknown", "It is not known whether events are delivered.", ""
    if status["state"] != "running":
        said = status["reason"] or words.STATES.get(status["state"], "")
        return "bad", "Nothing is sent: the state is %s." % status["state"], said
    bad = [e for e in endpoints.rows if e["state"] != "active"]
    troubled = sum(figure.get(("outbox_endpoints", s), 0) for s in ("backing_off", "disabled", "held"))
    late = [e for e in endpoints.rows if e["state"] == "active" and e["oldest_pending_age"]
            and e["oldest_pending_age"] > datetime.timedelta(minutes=5)]
    dead = figure.get(("outbox_deliveries", "dead"), 0)
    if status["held_steps"]:
        return "bad", "Events are delivered, but a part of the work is on hold.", status["reason"] or ""
    if troubled:
        first = next((e for e in bad if e["state"] in ("backing_off", "disabled", "held")), None)
        why = "%s: %s" % (first["endpoint"], first["reason"] or first["last_error"] or first["state"]) if first else ""
        one = troubled == 1
        return "warn", "Events are delivered, but not to %s." % words.count(troubled, "endpoint"), \
            why + ("" if one else ", and others")
    if late:
        return "warn", "Events are delivered, but %s more than five minutes behind." % words.count(len(late), "endpoint is", "endpoints are"), \
            "%s: the oldest has waited for %s" % (late[0]["endpoint"], words.seconds(late[0]["oldest_pending_age"]))
    if dead:
        return "warn", "Events are delivered, and %s for a decision." % words.count(dead, "dead letter waits", "dead letters wait"), ""
    if status["reason"]:
        return "warn", "Events are delivered.", status["reason"]
    paused = figure.get(("outbox_endpoints", "paused"), 0)
    return "good", "All is well: events are delivered%s." % (
        ", and %s" % words.count(paused, "endpoint is paused", "endpoints are paused") if paused else ""), ""


async def overview(session, _):
    """Is everything well, and where not."""
    status = await session.read("SELECT * FROM outbox.status")
    metrics = await session.read("SELECT name, labels, value FROM outbox.metrics(20)")
    figure, troubled = {}, []
    for row in metrics.rows:
        labels = row["labels"] or {}
        if "endpoint" not in labels:
            figure[row["name"], next(iter(labels.values()), "")] = row["value"]
        elif row["name"] == "outbox_endpoint_state" and row["value"]:
            troubled.append(labels["endpoint"])
    endpoints = await session.read("SELECT * FROM outbox.stats WHERE endpoint = ANY (%s)", troubled)
    rank = {"held": 0, "disabled": 1, "backing_off": 2, "paused": 4}
    endpoints.rows.sort(key=lambda e: (rank.get(e["state"], 3 if e["reason"] or e["dead"] else 5), -(e["dead"] or 0), e["endpoint"]))
    problem = status.problem or metrics.problem or endpoints.problem
    kind, sentence, why = ("unknown", "It is not known whether events are delivered.", problem) if problem \
        else verdict(status.row, figure, endpoints)
    return {"status": status, "metrics": metrics, "figure": figure, "endpoints": endpoints, "verdict": (kind, sentence, why),
            "total": sum(v for (n, _), v in figure.items() if n == "outbox_endpoints"), "charts": await figures(session)}


async def endpoints(session, q):
    """All endpoints by name, a page at a time."""
    state, part, after = q.get("state"), q.get("q"), q.get("after")
    answer = await session.read(
        "SELECT * FROM outbox.stats WHERE endpoint > %s AND (%s = '' OR state = %s) AND (%s = '' OR endpoint ILIKE %s OR tenant ILIKE %s)"
        " ORDER BY endpoint LIMIT %s", after, state, state, part, *["%" + part.replace("\\", "").replace("%", "\\%") + "%"] * 2, PAGE + 1)
    answer.rows, more = limit(answer.rows)
    following = "/endpoints?" + urlencode({"state": state, "q": part, "after": answer.rows[-1]["endpoint"]}) if more else None
    return {"endpoints": answer, "state": state, "part": part, "following": following, "states": words.ENDPOINT_STATES}


async def endpoint(session, q):
    """One endpoint: how it is doing, its settings, its changes, its newest deliveries."""
    name, status = q.need("endpoint"), q.get("status")
    row = await session.read("SELECT * FROM outbox.stats WHERE endpoint = %s", name)
    if not row.problem and not row.row:
        raise Refused("There is no endpoint %s. It may have been dropped." % name)
    deliveries = await session.read("SELECT * FROM outbox.deliveries_page(%s, status => %s, before => %s, page_size => %s)",
                                    name, status or None, q.get("before") or None, PAGE)
    cursor = deliveries.rows[-1]["cursor"] if deliveries.rows else None
    if deliveries.rows and deliveries.rows[-1]["event_id"] is None:
        deliveries.rows.pop()
    elif len(deliveries.rows) < PAGE:
        cursor = None
    more = "?" + urlencode({"status": status, "before": cursor}) if cursor else None
    return {"name": name, "stats": row, "status": status, "deliveries": deliveries, "following": more,
            "settings": await session.read("SELECT *, filter::text AS filter_text, config::text AS config_text, metadata::text AS metadata_text,"
                                           " timeout::text AS timeout_text, max_age::text AS max_age_text, backoff_max::text AS backoff_text,"
                                           " disable_after::text AS disable_text FROM outbox.endpoints WHERE name = %s", name),
            "audit": await session.read("SELECT at, actor, role, action, before::text AS before_text, after::text AS after_text"
                                        " FROM outbox.endpoint_audit WHERE endpoint = %s ORDER BY change_id DESC LIMIT 20", name),
            "replays": await session.read("SELECT * FROM outbox.replay_progress WHERE endpoint = %s ORDER BY started_at DESC LIMIT 5", name),
            "charts": await figures(session, name), "means": words.ENDPOINT_STATES, "statuses": words.STATUSES}


SCREENS = {
    "/": ("overview.html", overview), "/endpoints": ("endpoints.html", endpoints), "/endpoint/{endpoint}": ("endpoint.html", endpoint),
}
