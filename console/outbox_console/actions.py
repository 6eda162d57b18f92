"""What an operator can ask for.  Each action is a plan first: what it will do, to how many, and the calls.

A plan is made from the fields of a form.  The page that asks shows it, and the page that does it makes
it anew, so that nothing happens that was not in a plan.
"""

import dataclasses
import datetime
import uuid
from urllib.parse import parse_qsl, quote, urlencode

from . import words
from .words import count

MOST = 1000     # deliveries that are chosen one by one
NEWEST = 10000  # events among which those after a time are counted


class Refused(Exception):
    """The fields of a form make no plan, in words."""


@dataclasses.dataclass
class Field:
    """One input of a form, beside those that the page before has filled in."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    kind: str = "text"
    options: tuple = ()


@dataclasses.dataclass
class Plan:
    """What will happen, in sentences, and the calls that do it."""

    title: str
    will: list
    button: str
    back: str
    calls: list = dataclasses.field(default_factory=list)
    done: object = None         # the values of the calls -> a sentence
    next: object = None         # the values of the calls -> where to go, if not back
    danger: bool = False
    fields: list = dataclasses.field(default_factory=list)
    ready: bool = True          # false: fields are to be filled in first
    secret: bool = False        # the value is shown once, and nowhere else
    alone: bool = False         # its call refuses to run inside a transaction
    also: list = dataclasses.field(default_factory=list)    # other actions: (name, words, fields)


class Form:
    """The fields of a form, each checked as it is read."""

    def __init__(self, pairs):
        self.pairs = [(n, v.replace("\x00", "")) for n, v in pairs]

    @classmethod
    def parse(cls, text, more=()):
        """The fields of an address or of a body, and more."""
        try:
            return cls([*parse_qsl(text, keep_blank_values=True, max_num_fields=2 * MOST), *more])
        except ValueError as e:
            raise Refused("The form has too many fields.") from e

    def get(self, name, default=""):
        """The last value of this name."""
        return next((v.strip() for n, v in reversed(self.pairs) if n == name and v.strip()), default)

    def need(self, name):
        """The value, which has to be there."""
        value = self.get(name)
        if not value:
            raise Refused("%s is missing." % name)
        return value

    def all(self, name):
        """All values of this name."""
        return [v for n, v in self.pairs if n == name and v]

    def event(self, name="event"):
        """The value as an id of an event."""
        try:
            return str(uuid.UUID(self.need(name)))
        except ValueError as e:
            raise Refused("%s is no id of an event." % self.get(name)) from e

    def time(self, name):
        """The value as a time: ISO, in UTC where nothing else is said."""
        try:
            at = datetime.datetime.fromisoformat(self.need(name).replace("Z", "+00:00"))
        except ValueError as e:
            raise Refused("%s is no time: write it as 2026-11-20 06:00." % self.get(name)) from e
        return at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)


def page(endpoint):
    """The page of an endpoint."""
    return "/endpoint/" + quote(endpoint, safe="")


async def stats(session, endpoint):
    """The row of outbox.stats, or Refused."""
    answer = await session.read("SELECT *, now() AS asked_at FROM outbox.stats WHERE endpoint = %s", endpoint)
    if answer.problem:
        raise Refused(answer.problem)
    if not answer.row:
        raise Refused("There is no endpoint %s. It may have been dropped." % endpoint)
    return answer.row


def going(to, what, n, left=0):
    """A page with a bar for what was asked for, whose figures will have so many left: see GOING."""
    return to + ("?" + urlencode({"going": what, "of": n, "left": left}) if n else "")


def in_all(row):
    """How many deliveries wait at an endpoint (None: not known)."""
    return None if row["pending"] is None else row["pending"] + row["processing"] + row["retrying"] + row["blocked"]


def waiting(row):
    """The same as a phrase."""
    if row["pending"] is None:
        return "an unknown number of deliveries"
    return ("" if row["pending_exact"] else "about ") + count(in_all(row), "delivery", "deliveries")


async def pause(session, form):
    """Stops an endpoint."""
    name = form.need("endpoint")
    row = await stats(session, name)
    return Plan("Pause %s" % name,
                ["Nothing more is sent to %s until it is resumed. Requests that are under way end." % name,
                 "%s wait there now. They are kept, and so are new ones." % waiting(row).capitalize()],
                "Pause", page(name), [("SELECT outbox.pause_endpoint(%s)", (name,))],
                lambda v: "%s is paused." % name)


async def resume(session, form):
    """Starts an endpoint, or tries it at once."""
    name = form.need("endpoint")
    row = await stats(session, name)
    will = {"backing_off": "One request is sent at once. If it is taken, the others follow.",
            "unverified": "Its receiver is asked again whether it wants events.",
            "active": "It is active already. If its receiver asked to wait, one request is sent at once."}
    return Plan("Resume %s" % name,
                [will.get(row["state"], "Sending to %s begins again, where it stopped." % name),
                 "%s wait there." % waiting(row).capitalize()],
                "Resume", page(name), [("SELECT outbox.resume_endpoint(%s)", (name,))],
                lambda v: "%s is resumed." % name, lambda v: going(page(name), "resume", in_all(row)))


async def test(session, form):
    """Sends a test event."""
    name = form.need("endpoint")
    await stats(session, name)
    return Plan("Send a test event to %s" % name,
                ["One event of the topic outbox.test is sent to %s alone, with the header outbox-test: true." % name],
                "Send it", page(name), [("SELECT outbox.send_test(%s)::text", (name,))],
                lambda v: "A test event is on its way.",
                lambda v: "/delivery/%s/%s" % (quote(name, safe=""), v[0]))


async def places(session, form):
    """The endpoints that a form is about, and a phrase for them: the one that it names, or all of a tenant."""
    name, tenant = form.get("endpoint"), form.get("tenant")
    if name:
        return [name], name
    if not tenant:
        raise Refused("Nothing was chosen. Go back and choose, or name an endpoint.")
    answer = await session.read("SELECT name FROM outbox.endpoints WHERE tenant = %s ORDER BY name", tenant)
    if not answer.rows:
        raise Refused(answer.problem or "No endpoint belongs to %s." % tenant)
    return [r["name"] for r in answer.rows], "the endpoints of %s" % tenant


def picked(form):
    """The deliveries that were chosen one by one: their endpoints, and their events."""
    picks = [p.split(" ", 1) for p in form.all("pick")]
    if len(picks) > MOST:
        raise Refused("At most %d at once." % MOST)
    return [p[0] for p in picks], [Form([("event", p[-1])]).event() for p in picks]


DEAD = """FROM (SELECT d.endpoint, d.event_id, d.created_at FROM outbox.dead_letters d WHERE d.endpoint = ANY (%s::text[]) AND %s IN ('', d.reason)
AND (%s::text[] IS NULL OR outbox.topic_in(d.topic, %s::text[])) AND (%s::timestamptz IS NULL OR d.parked_at >= %s) {}) d (endpoint, event, emitted)"""


def dead_of(names, form, more=""):
    """The dead letters of endpoints that the filter of a form finds: SQL, and its arguments."""
    topics = form.get("topics").replace(",", " ").split() or None
    since = form.time("since") if form.get("since") else None
    return DEAD.format(more), (names, form.get("reason"), topics, topics, since, since)


FAILED = """SELECT sum(value) FILTER (WHERE labels ->> 'status' = 'dead')::int8 AS dead,
sum(value) FILTER (WHERE labels ->> 'status' = 'retrying')::int8 AS retrying FROM outbox.metrics(0) WHERE name = 'outbox_deliveries'"""


async def failed(session, names):
    """Deliveries that are dead or wait for a retry: of the endpoint, or of all of them where there are several."""
    if len(names) == 1:
        return await stats(session, names[0])
    return (await session.read(FAILED)).row or {"dead": None, "retrying": None}


async def chosen(session, form, also_retrying=False):
    """What retry and discard are asked for: (phrase, number or None, SQL of the calls' arguments, arguments, endpoints)."""
    names, events = picked(form)
    if names:
        return (count(len(names), "dead letter"), len(names),
                "FROM unnest(%s::text[], %s::uuid[]) d (endpoint, event)", (names, events), sorted(set(names)))
    names, where = await places(session, form)
    if form.get("event"):
        return "this delivery", 1, "FROM (VALUES (%s, %s::uuid)) d (endpoint, event)", (names[0], form.event()), names
    reason = form.get("reason")
    source, args = dead_of(names, form, "LIMIT %d" % MOST if reason else "LIMIT 100001")
    topics, since = args[2], args[4]
    phrase = ("all that failed at %s, dead or not" if also_retrying and not reason else "all dead letters of %s") % where
    if reason:
        phrase += " with the reason %s" % reason.replace("_", " ")
    if topics:
        phrase += " with the topics %s" % " ".join(topics)
    if since:
        phrase += " since %s UTC" % since.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    if reason or topics or since:
        n = ((await session.read("SELECT count(*) AS n " + source, *args)).row or {"n": None})["n"]
    else:
        answer = await session.read("SELECT sum(dead + CASE WHEN %s THEN retrying ELSE 0 END)::int8 AS n FROM outbox.stats WHERE endpoint = ANY (%s)",
                                    also_retrying, names)
        n = answer.row and answer.row["n"]
    if reason:
        return phrase, n, source, args, names
    return (phrase, n, "FROM (SELECT n, NULL::uuid, %s::text[], %s::timestamptz FROM unnest(%s::text[]) n) d (endpoint, event, topics, since)",
            (topics, since, names), names)


def how_many(n):
    """A sentence about the number."""
    if n is None:
        return "How many these are could not be counted in time."
    return "%s more than %s." % ("These are", count(100000, "delivery", "deliveries")) if n == 100001 else "%s %s." % ("This is" if n == 1 else "These are", count(n, "delivery", "deliveries"))


def call(function, source):
    """SQL that calls a function for each row of a source, and sums up."""
    more = ", d.topics, d.since" if "since" in source else ""
    return "SELECT COALESCE(sum(outbox.%s(d.endpoint, d.event%s)), 0)::int8 %s" % (function, more, source)


# What may go on: words, and the figures whose sum shrinks meanwhile.
GOING = {"retry": ("Sending again", ("dead", "retrying")), "discard": ("Discarding", ("dead",)), "skip": ("Skipping", ("pending",)),
         "resume": ("Sending what waited", ("pending", "processing", "retrying", "blocked"))}


def leads(form, names, what, row):
    """Where a retry or a discard leads: to the delivery, or to a page with a bar, of the endpoint or of all of them."""
    if form.get("event"):
        return lambda v: "/delivery/%s/%s" % (quote(names[0], safe=""), form.event())
    to, figures = page(names[0]) if len(names) == 1 else "/dead", [row[n] for n in GOING[what][1]]
    return lambda v: to if None in figures else going(to, what, v[0], max(sum(figures) - v[0], 0))


async def retry(session, form):
    """Sends dead deliveries again."""
    phrase, n, source, args, names = await chosen(session, form, True)
    row = await failed(session, names)
    to, inactive = leads(form, names, "retry", row), row.get("state")
    return Plan("Send %s again" % phrase,
                ["Due now, and tried anew with all attempts: %s." % phrase, how_many(n)]
                + (["Those that wait for a retry are sent now, too."] if not form.get("reason") and (form.get("topics") or form.get("since")) else [])
                + (["More than %s are not taken at once: ask again for the others." % words.number(MOST)] if form.get("reason") and n == MOST else [])
                + (["The endpoint is %s: they are sent when it is resumed." % inactive] if inactive in ("paused", "disabled", "held") else []),
                "Send again", "/dead" if form.get("pick") else to([0]), [(call("retry", source), args)],
                lambda v: "%s asked to be sent again." % (count(v[0], "delivery is", "deliveries are")), to)


async def discard(session, form):
    """Gives dead deliveries up."""
    phrase, n, source, args, names = await chosen(session, form)
    to = leads(form, names, "discard", await failed(session, names))
    return Plan("Discard %s" % phrase,
                ["Given up for good: %s. They cannot be sent again from here." % phrase, how_many(n),
                 "Where an endpoint blocks a key behind a dead letter, the key goes on."],
                "Discard for good", "/dead" if form.get("pick") else to([0]), [(call("discard", source), args)],
                lambda v: "%s discarded." % (count(v[0], "dead letter is", "dead letters are")), to, danger=True)


async def resend(session, form):
    """Sends a delivered event again."""
    names, events = picked(form)
    if names:
        return Plan("Send %s again" % count(len(events), "event"),
                    ["The receiver gets %s again, with the same ids. It has to bear repetitions." % count(len(events), "event")],
                    "Send again", page(names[0]),
                    [("SELECT count(*) FROM unnest(%s::text[], %s::uuid[]) d (endpoint, event), LATERAL outbox.resend(d.endpoint, d.event)",
                      (names, events))], lambda v: "%s on the way again." % count(v[0], "event is", "events are"))
    name, event = form.need("endpoint"), form.event()
    return Plan("Send this event to %s again" % name,
                ["The receiver of %s gets the event again, with the same id. It has to bear a repetition." % name],
                "Send again", "/delivery/%s/%s" % (quote(name, safe=""), event),
                [("SELECT outbox.resend(%s, %s::uuid)", (name, event))], lambda v: "The event is on its way again.")


async def cancel(session, form):
    """Takes a delivery back."""
    name, event = form.get("endpoint"), form.event()
    return Plan("Take this event back from %s" % (name or "all endpoints"),
                ["It is not sent to %s any more, and its key goes on. This cannot be undone." % (name or "any endpoint"),
                 "A request that is under way is not undone."],
                "Take it back", "/delivery/%s/%s" % (quote(name, safe=""), event) if name else "/event/" + event,
                [("SELECT outbox.cancel(%s::uuid, %s)", (event, name or None))],
                lambda v: "It is taken back." if v[0] else "It was not waiting any more: nothing was taken back.", danger=True)


COUNT_REPLAY = """
SELECT count(*) AS n FROM (
    SELECT FROM outbox.all_events e JOIN outbox.endpoints p ON p.name = ANY (%s)
    WHERE e.created_at BETWEEN %s AND %s AND e.test_of IS NULL AND (p.tenant IS NULL OR p.tenant = e.tenant)
    AND outbox.topic_in(e.topic, p.topics) AND (%s::text[] IS NULL OR outbox.topic_in(e.topic, %s::text[]))
    AND outbox.filter_matches(e.payload, p.filter) LIMIT 100001) r"""


async def span(session, form):
    """The endpoints of a replay, a phrase for them, and the times of the dead letters that were chosen or are like the form's filter."""
    names, events = picked(form)
    if names:
        names, where = sorted(set(names)), names[0] if len(set(names)) == 1 else count(len(set(names)), "endpoint")
        source, args = "FROM (SELECT created_at FROM outbox.all_events WHERE id = ANY (%s::uuid[])) d (emitted)", (events,)
    else:
        names, where = await places(session, form)
        source, args = dead_of(names, form, "ORDER BY d.seq DESC LIMIT %d" % MOST)
    if form.get("from") or not (events or form.get("dead")):
        return names, where, None, None
    answer = await session.read("SELECT date_trunc('second', min(emitted)) AS begin, date_trunc('second', max(emitted)) + interval '1 s' AS until "
                                + source, *args)
    return (names, where, answer.row["begin"], answer.row["until"]) if answer.row else (names, where, None, None)


async def replay(session, form):
    """Sends all events of a time again."""
    names, where, begin, until = await span(session, form)
    now = (await stats(session, names[0]))["asked_at"]
    plan = Plan("Replay events to %s" % where,
                ["Events that were emitted between two times are sent to %s again, delivered or not, but for dead letters: a retry sends them." % where]
                + (["The times are those of the first and the last of these dead letters." if form.get("pick")
                    else "The times are those of the dead letters there, of the newest %s at most." % words.number(MOST)] if begin else []),
                "Replay", page(names[0]) if len(names) == 1 else "/dead", ready=bool(form.get("from")),
                fields=[Field("from", "From (UTC)", form.get("from", (begin or now - datetime.timedelta(hours=2)).strftime("%Y-%m-%d %H:%M:%S"))),
                        Field("to", "To (UTC)", form.get("to", (until or now).strftime("%Y-%m-%d %H:%M:%S"))),
                        Field("topics", "Topics", form.get("topics"), "patterns with blanks between them; empty: all that it subscribes to")])
    if plan.ready:
        begin, until, topics = form.time("from"), form.time("to"), form.get("topics").replace(",", " ").split() or None
        args = (names, begin, until, topics, topics)
        found = (await session.read(COUNT_REPLAY, *args)).row
        dead = (await session.read("SELECT count(*) AS n FROM (SELECT FROM outbox.dead_letters d JOIN outbox.endpoints p ON p.name = d.endpoint WHERE p.name = ANY (%s)"
                                   " AND d.created_at BETWEEN %s AND %s AND (%s::text[] IS NULL OR outbox.topic_in(d.topic, %s::text[]))"
                                   " AND outbox.topic_in(d.topic, p.topics) AND outbox.filter_matches(d.payload, p.filter) LIMIT 100001) d", *args)).row
        plan.will = ["Sent again to %s, delivered or not: what was emitted from %s to %s UTC%s." % (where, *(
            t.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S") for t in (begin, until)), " with the topics " + " ".join(topics) if topics else ""),
            how_many(found and dead and found["n"] - (dead["n"] if found["n"] <= 100000 else 0)),
            "The receiver has to bear repetitions. New events are sent meanwhile.",
            "Dead letters are left out%s." % (": %s of that time" % ("more than 100,000" if dead["n"] > 100000 else words.number(dead["n"])) if dead else "")]
        if dead and dead["n"]:
            about = {"endpoint": names[0]} if len(names) == 1 else {"tenant": form.get("tenant")}
            plan.also = [("retry", "Retry the dead letters instead", {**about, "topics": " ".join(topics or ()), "since": begin.isoformat()})] if all(about.values()) else []
        plan.calls = [("SELECT COALESCE(sum(outbox.replay(n, %s, %s, %s::text[])), 0)::int8 FROM unnest(%s::text[]) n", (begin, until, topics, names)),
                      ("SELECT max(replay_id) FROM outbox.replay_progress WHERE endpoint = ANY (%s)", (names,))]
        plan.done = lambda v: "%s asked to be sent again." % count(v[0], "event is", "events are")
        plan.next = lambda v: plan.back if not v[0] else "/system" if len(names) > 1 else "/replay/%s/%s?of=%s" % (quote(names[0], safe=""), v[1], v[0])
    return plan


async def cancel_replay(session, form):
    """Ends a replay."""
    name, number = form.need("endpoint"), form.need("replay")
    if not number.isdecimal() or not number.isascii() or len(number) > 18:
        raise Refused("%s is no number of a replay." % number)
    return Plan("End replay %s of %s" % (number, name), ["What it has come to by now is sent, and nothing more of it."],
                "End it", "/replay/%s/%s" % (quote(name, safe=""), number),
                [("SELECT outbox.cancel_replay(%s, %s)", (name, int(number)))],
                lambda v: "The replay is ended." if v[0] else "It had ended before.")


async def skip(session, form):
    """Skips what waits in the log."""
    name = form.need("endpoint")
    row = await stats(session, name)
    about = "" if row["pending_exact"] else "about "
    return Plan("Skip what waits for %s" % name,
                ["It goes on with new events. %s%s skipped, and not sent." % (about, count(row["pending"] or 0, "event is", "events are")),
                 "Those that wait for a retry stay. A replay can send skipped ones, as long as the log has them."],
                "Skip them", page(name), [("SELECT outbox.seek_endpoint(%s, 'now')", (name,))],
                lambda v: "%s goes on with new events." % name, lambda v: going(page(name), "skip", row["pending"]), danger=True)


# Of the newest events, since no index leads to those of a time.
COUNT_SEEK = """
SELECT count(*) FILTER (WHERE e.created_at >= %s AND (p.tenant IS NULL OR p.tenant = e.tenant) AND e.test_of IS NULL
                        AND outbox.topic_in(e.topic, p.topics) AND outbox.filter_matches(e.payload, p.filter)) AS n,
       count(*) = %s AND min(e.created_at) >= %s AS more
FROM (SELECT * FROM outbox.all_events ORDER BY seq DESC LIMIT %s) e JOIN outbox.endpoints p ON p.name = %s"""


async def seek(session, form):
    """Goes back in the log, or forward."""
    name = form.need("endpoint")
    row = await stats(session, name)
    plan = Plan("Move %s in the log" % name, ["Everything that was emitted from this time on is sent, once more where it was sent before.",
                                             "Waiting events from before that time are skipped."],
                "Move it", page(name), ready=bool(form.get("to")), danger=True,
                fields=[Field("to", "To the time (UTC)", form.get("to"), "like 2026-11-20 06:00")])
    if plan.ready:
        at = form.time("to")
        found = (await session.read(COUNT_SEEK, at, NEWEST, at, NEWEST, name)).row
        oldest = row["oldest_pending_age"] and row["asked_at"] - row["oldest_pending_age"]
        plan.will = ["Everything for %s that was emitted from %s UTC on is sent, once more where it was sent before." % (
            name, at.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")),
            "Of the newest %s events, these are %s. There are more." % (words.number(NEWEST), count(found["n"], "delivery", "deliveries"))
            if found and found["more"] else how_many(found and found["n"]),
            "Nothing that waits is skipped." if row["pending"] == 0 or oldest and at < oldest
            else "Of the %s that wait, those from before that time are skipped." % waiting(row)]
        plan.calls = [("SELECT outbox.seek_endpoint(%s, %s::timestamptz)", (name, at))]
        plan.done = lambda v: "%s goes on from %s." % (name, at.strftime("%Y-%m-%d %H:%M UTC"))
    return plan


SETTINGS = {    # name: (label, hint, whether an empty field brings the default back)
    "url": ("URL", "", False),
    "topics": ("Topics", "patterns with blanks between them", False),
    "filter": ("Filter", "a predicate in jsonpath over the payload; empty: all events", True),
    "label": ("Label", "what people call it", True),
    "max_in_flight": ("Requests in flight", "at most", True),
    "rate_limit": ("Requests per second", "empty: no limit", True),
    "timeout": ("Timeout", "for a whole request", True),
    "max_attempts": ("Attempts", "after which a delivery is dead; empty: no limit", True),
    "max_age": ("Age", "after which a failing delivery is dead", True),
    "backoff_max": ("Longest wait", "between two attempts", True),
    "ordering": ("Order", "key: events of one key one after the other; strict: all of them; none: faster", True),
    "on_exhausted": ("A dead event", "skip: the next of its key is sent; block: the key waits", True),
    "disable_after": ("Disable after", "time of nothing but failures; 0: never", True),
}
CHOICES = {"ordering": ("key", "strict", "none"), "on_exhausted": ("skip", "block")}
HEADERS = Field("headers", "Headers", "", 'empty: as they are; or all of them anew, like {"Authorization": "Bearer …"}')
TYPES = {"topics": "text[]", "filter": "jsonpath", "max_in_flight": "int4", "rate_limit": "float4", "timeout": "interval",
         "max_attempts": "int4", "max_age": "interval", "backoff_max": "interval", "disable_after": "interval"}


def texts(row):
    """The row with its intervals as texts."""
    return {n: words.span(v) if isinstance(v, datetime.timedelta) else v for n, v in row.items()}


async def settings_of(session, name):
    """The settings of an endpoint as texts, or Refused."""
    answer = await session.read("SELECT %s, version FROM outbox.endpoints WHERE name = %%s" % ", ".join(
        "array_to_string(topics, ' ') AS topics" if s == "topics" else "COALESCE(%s, '0') AS %s" % (s, s) if TYPES.get(s) == "interval" else "%s::text AS %s" % (s, s)
        for s in SETTINGS), name)
    if not answer.row:
        raise Refused(answer.problem or "There is no endpoint %s." % name)
    return texts(answer.row)


def inputs(now):
    """Fields for settings, filled in with what they are."""
    return [Field(s, label, now[s] or "", hint,
                  *(("select", CHOICES[s]) if s in CHOICES else ()))
            for s, (label, hint, _) in SETTINGS.items()]


async def alter(session, form):
    """Changes settings."""
    name = form.need("endpoint")
    now = await settings_of(session, name)
    plan = Plan("Settings of %s" % name, ["Only what you change is changed. Events that wait are sent with the new settings."],
                "Change", page(name), fields=[*inputs(now), HEADERS], ready=bool(form.get("version")))
    if not plan.ready:
        plan.fields.append(Field("version", "", str(now["version"]), kind="hidden"))
        return plan
    if form.get("version") != str(now["version"]):
        raise Refused("The endpoint was changed meanwhile. Look at it again, then change it.")
    changed = {s: form.get(s) for s in SETTINGS if form.get(s) != (now[s] or "")}
    headers = form.get("headers")
    plan.fields = [Field("headers", "", headers, kind="hidden"), Field("version", "", form.get("version"), kind="hidden")]
    plan.fields += [Field(s, SETTINGS[s][0], form.get(s), kind="hidden") for s in SETTINGS]
    if not changed and not headers:
        raise Refused("Nothing is different.")
    gone = [s for s in changed if not changed[s]]
    for s in gone:
        if not SETTINGS[s][2]:
            raise Refused("%s must not be empty." % SETTINGS[s][0])
    plan.will = ["%s: %s becomes %s." % (SETTINGS[s][0], words.visible(now[s] or "nothing"), words.visible(changed[s] or "the default"))
                 for s in changed] + (["The headers become those that you have entered, and no others."] if headers else [])
    args, arguments = [name], []
    if headers:
        arguments.append("headers => %s::jsonb")
        args.append(headers)
    for s, value in changed.items():
        if value:
            arguments.append("%s => %%s::%s" % (s, TYPES.get(s, "text")))
            args.append(value.split() if s == "topics" else value)
    if gone:
        arguments.append("reset => %s::text[]")
        args.append(gone)
    plan.calls = [("SELECT outbox.alter_endpoint(%%s, %s)" % ", ".join(arguments), tuple(args))]
    plan.done = lambda v: "%s is changed." % name
    return plan


async def rotate(session, form):
    """Another secret."""
    name, grace = form.need("endpoint"), form.get("grace")
    await stats(session, name)
    plan = Plan("Another secret for %s" % name,
                ["A new secret is made. During the grace, requests carry both signatures.",
                 "If the secret has leaked, take 0: the receiver refuses requests until it has the new one, and they are retried."],
                "Change the secret", page(name), ready=bool(grace), danger=True,
                fields=[Field("grace", "Grace", grace or "24 hours", kind="select", options=("0", "1 hour", "24 hours", "7 days"))])
    own = form.get("secret") or None
    plan.fields.append(Field("secret", "Secret", own or "", "empty: a new one is made; or the one that the receiver knows"))
    plan.calls = [("SELECT outbox.rotate_secret(%s, grace => %s::interval, secret => %s)", (name, grace, own))]
    plan.done = lambda v: "%s has a new secret." % name
    return plan


async def secret(session, form):
    """Shows the secret once."""
    name = form.need("endpoint")
    await stats(session, name)
    return Plan("The secret of %s" % name, ["It is shown on the next page alone. With it, anyone can sign requests that the receiver accepts."],
                "Show it", page(name), [("SELECT outbox.endpoint_secret(%s)", (name,))], secret=True)


async def drop(session, form):
    """Drops an endpoint."""
    name = form.need("endpoint")
    row = await stats(session, name)
    return Plan("Drop %s" % name,
                ["The endpoint is gone, with its settings and its secret. This cannot be undone.",
                 "%s and %s are given up with it." % (waiting(row).capitalize(), count(row["dead"] or 0, "dead letter"))],
                "Drop it for good", "/endpoints", [("SELECT outbox.drop_endpoint(%s, discard => true)", (name,))],
                lambda v: "%s is dropped." % name, danger=True)


async def create(session, form):
    """A new endpoint."""
    name, url = form.get("name"), form.get("url")
    topics, tenant = form.get("topics", "*").replace(",", " ").split(), form.get("tenant") or None
    plan = Plan("A new endpoint", ["It gets the events that match, from now on."], "Create it", "/endpoints", ready=bool(name and url),
                fields=[Field("name", "Name", name, "letters, digits, - _ ."), Field("url", "URL", url, "https://…"),
                        Field("topics", "Topics", " ".join(topics), "patterns with blanks between them, like order.*"),
                        Field("tenant", "Tenant", tenant or "", "the customer whose events it gets; empty: events of all")])
    if plan.ready:
        plan.will = ["%s is created. It gets events of %s with the topics %s, from now on." % (
            name, "the tenant " + tenant if tenant else "all tenants and of none", " ".join(topics))]
        plan.calls = [("SELECT outbox.create_endpoint(%s, %s, topics => %s::text[], tenant => %s)", (name, url, topics, tenant))]
        plan.done = lambda v: "%s is created." % name
        plan.next = lambda v: page(name)
    return plan


async def retention(session, form):
    """How long events and attempts are kept."""
    answer = await session.read("SELECT retention AS events, attempts_retention AS attempts FROM outbox.status")
    if not answer.row:
        raise Refused(answer.problem or "outbox.status has no row.")
    now = texts(answer.row)
    plan = Plan("How long this database keeps events", ["Forgotten events cannot be replayed. Events that an endpoint has yet to read stay."],
                "Change", "/system", ready=any(n == "events" for n, _ in form.pairs), danger=True,
                fields=[Field("events", "Events", now["events"] or "", "empty: as the server's setting says"),
                        Field("attempts", "Attempts", now["attempts"] or "", "empty: as the server's setting says")])
    if plan.ready:
        wanted = {n: form.get(n) or None for n in ("events", "attempts")}
        plan.fields = [Field(n, "", v or "", kind="hidden") for n, v in wanted.items()]
        plan.will.insert(0, "Events are kept for %s, attempts for %s." % tuple(v or "as long as the server's setting says" for v in wanted.values()))
        # What is as it was may be the server's setting.
        plan.calls = [("SELECT outbox.set_retention(events => %s::interval, attempts => %s::interval, reset => %s::text[])",
                       (*(None if wanted[n] == now[n] else wanted[n] for n in wanted), [n for n, v in wanted.items() if not v]))]
        plan.done = lambda v: "The retention is changed."
    return plan


LIMITS = {"max_in_flight": ("Requests in flight", "int4"), "rate_limit": ("Requests per second", "float4"),
          "max_kept": ("Deliveries that are kept", "int8"), "max_kept_bytes": ("Their bytes", "int8"), "max_kept_age": ("Their age", "interval")}


async def limits(session, form):
    """How much of the workers and of the disk a tenant may use."""
    name = form.need("tenant")
    answer = await session.read("SELECT %s FROM outbox.tenant_limits(%%s)" % ", ".join(n if t == "interval" else "%s::text AS %s" % (n, n) for n, (_, t) in LIMITS.items()), name)
    if not answer.row:
        raise Refused(answer.problem or "outbox.tenant_limits() has no row.")
    now = texts(answer.row)
    plan = Plan("Limits of %s" % name, ["They hold for all endpoints of this tenant together, besides those of each."], "Change",
                "/tenant?" + urlencode({"name": name}), ready=any(n == "max_kept" for n, _ in form.pairs), danger=True,
                fields=[Field(n, label, now[n] or "", "empty: no limit of its own") for n, (label, _) in LIMITS.items()])
    if plan.ready:
        wanted = {n: form.get(n) or None for n in LIMITS}
        plan.fields = [Field(n, "", v or "", kind="hidden") for n, v in wanted.items()]
        # What is as it was may be the limit of all tenants. One limit cannot be taken away alone.
        reset = any(now[n] and not wanted[n] for n in LIMITS)
        given = wanted if reset else {n: v for n, v in wanted.items() if v != now[n]}
        if not given:
            raise Refused("Nothing is different.")
        plan.will = ["%s: %s." % (LIMITS[n][0], v or "no limit of its own") for n, v in given.items()]
        if any(v for n, v in given.items() if n.startswith("max_kept")):
            plan.will.append("Of the deliveries that are kept beyond that, the oldest are given up, and cannot be sent again.")
        plan.calls = [("SELECT outbox.set_tenant_limits(%%s, reset => %%s, %s)" % ", ".join("%s => %%s::%s" % (n, LIMITS[n][1]) for n in given),
                       (name, reset, *given.values()))]
        plan.done = lambda v: "The limits of %s are changed." % name
    return plan


async def follow(session, form):
    """Follows a source, anew where it was followed before."""
    name, service = form.get("name"), form.get("service")
    found = await session.read("SELECT publication, keep FROM outbox.sources WHERE name = %s", name)
    if found.problem:
        raise Refused(found.problem)
    before = found.row or {"publication": "outbox", "keep": "1 day"}
    publication, keep = form.get("publication", before["publication"] or ""), form.get("keep", texts(before)["keep"])
    return Plan("Follow %s" % (name or "a source"),
                ["Events that the source still has and this database lacks are taken over, each once: how many is known when it is done. Then new ones come."],
                "Follow it", "/system", [("SELECT outbox.follow(%s, 'service=' || %s::text, %s, %s::interval)", (name, service, publication, keep))],
                lambda v: "%s is followed. %s taken over." % (name, count(v[0], "event was", "events were")), ready=bool(name and service and publication and keep), alone=True,
                fields=[Field("name", "Name", name, "small letters, digits, _"), Field("service", "Service", service, "its entry in pg_service.conf of this server"),
                        Field("publication", "Publication", publication), Field("keep", "Kept for", keep, "how long its events are kept at the source")])


async def unfollow(session, form):
    """Follows a source no more."""
    name = form.need("name")
    row = (await session.read("SELECT pg_size_pretty(retained) AS retained FROM outbox.sources WHERE name = %s", name)).row
    if not row:
        raise Refused("No source %s is followed." % name)
    return Plan("Stop following %s" % name, ["Nothing more is taken from it, and what has come is delivered. Its replication slot there, which retains %s, is dropped if it can be reached."
                                            % (row["retained"] or "an unknown amount")],
                "Stop following it", "/system", [("SELECT outbox.unfollow(%s)", (name,))], lambda v: "%s is followed no more." % name, danger=True, alone=True)


async def describe(session, form):
    """Describes a topic that the catalogue does not have."""
    topic, said, example = form.get("topic"), form.get("description"), form.get("example")
    if topic and (await session.read("SELECT FROM outbox.event_types WHERE topic = %s", topic)).rows:
        raise Refused("%s is described already. outbox.set_event_type() replaces all that is said of it." % topic)
    return Plan("Describe %s" % (topic or "a topic"), ["Customers read it in the portal. Where only described topics may be emitted, this one may be from now on."],
                "Describe it", "/catalogue", [("SELECT outbox.set_event_type(%s, %s, example => %s::jsonb)::text", (topic, said or None, example or None))],
                lambda v: "%s is described." % topic, ready=bool(topic),
                fields=[Field("topic", "Topic", topic), Field("description", "Description", said), Field("example", "Example", example, "a payload in JSON")])


ACTIONS = {"follow": follow, "unfollow": unfollow, "describe": describe, "pause": pause, "resume": resume, "test": test, "retry": retry, "discard": discard, "resend": resend, "cancel": cancel,
           "replay": replay, "cancel_replay": cancel_replay, "skip": skip, "seek": seek, "alter": alter, "rotate": rotate,
           "secret": secret, "drop": drop, "create": create, "retention": retention, "limits": limits}


def link(action, **fields):
    """Where the page is that asks."""
    return "/do/%s?%s" % (action, urlencode(fields))
