"""Numbers, times and states in words, and text that shows each character that could mislead."""

import datetime
import re

# Controls, marks that change the direction of text, and characters without a width.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
                    "|[\U000e0000-\U000e0fff]")

# What a state of outbox.status asks of the operator.
STATES = {
    "stuck": "A worker has done nothing for 10 s. A superuser ends it with pg_terminate_backend(), and another one starts.",
    "held": "The log is held. If it is a copy, read about outbox.adopt() before you do anything.",
    "disabled": "The setting outbox.enabled is off. A superuser switches it on.",
    "no_worker": "There is no worker. Wait a few seconds, then read the server log.",
    "not_preloaded": "Add outbox to shared_preload_libraries, and restart the server.",
    "version_mismatch": "Library and objects differ: ALTER EXTENSION outbox UPDATE, or restart the server.",
    "standby": "Its primary delivers the events. Here is what has been copied from it so far, and nothing can be changed.",
}

# What a state of an endpoint means.
ENDPOINT_STATES = {
    "active": "It gets its events.",
    "backing_off": "Its receiver fails. One request at a time tries whether it is back.",
    "paused": "Nothing is sent to it until it is resumed.",
    "disabled": "It was given up, and gets nothing until it is resumed.",
    "held": "Nothing is sent to it, because of something at this server.",
    "unverified": "Nothing is sent to it before its receiver has proved that it wants events.",
    "unknown": "No worker has read it since the server started.",
}

# What a status of a delivery means, and what comes next.
STATUSES = {
    "scheduled": "Its time has not come.",
    "pending": "Earlier events come first, or the endpoint is stopped.",
    "processing": "The request is under way, or waits behind another event of its key.",
    "delivered": "The receiver has taken it.",
    "retrying": "The last attempt failed, or it is to be sent again. It is tried by itself.",
    "blocked": "An earlier event of its key has to be delivered first.",
    "dead": "It was given up. It is sent again only if you ask for it.",
    "cancelled": "It was taken back, and is not sent.",
    "forgotten": "Its content was removed at the request of a customer.",
}

# Why a delivery died.
REASONS = {
    "max_attempts": "refused as often as the endpoint allows",
    "max_age": "failed for as long as the endpoint allows",
    "expired": "its expires_at was reached",
    "aborted by receiver": "the receiver said that it will never take it",
    "invalid event": "it cannot be sent as a request",
    "filter failed": "the filter could not be judged on its payload",
    "backlog": "the log or its tenant had more than its limit",
    "event is gone": "the event is not in the database any more",
    "unreadable": "the event cannot be read",
}


def visible(text):
    """The text with each character that hides, or changes how others look, as its number."""
    return HIDDEN.sub(lambda m: "\u27e8U+%04X\u27e9" % ord(m[0]), text)


def number(n):
    """1234567 as 1,234,567; above 100,000 with three digits."""
    if n is None:
        return "not known"
    n = float(n)
    for unit, name in ((1e9, "G"), (1e6, "M")):
        if abs(n) >= unit:
            return "%.3g %s" % (n / unit, name)
    return "{:,.0f}".format(n) if n == int(n) or abs(n) >= 10 else "%.2g" % n


def count(n, one, many=None):
    """1 event, 2 events."""
    return "%s %s" % (number(n), one if n == 1 else many or one + "s")


def size(n):
    """Bytes as people say them."""
    if n is None:
        return "not known"
    n = float(n)
    for name in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return "%.3g %s" % (n, name)
        n /= 1000
    return "%.3g TB" % n


def seconds(s):
    """A length of time as people say it."""
    if s is None:
        return "not known"
    if isinstance(s, datetime.timedelta):
        s = s.total_seconds()
    s = float(s)
    if abs(s) < 1:
        return "%.3g ms" % round(s * 1000, 2)
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (172800, 3600, "h")):
        if abs(s) < limit:
            return "%.3g %s" % (s / unit, name)
    return "%.3g days" % (s / 86400)


def age(t):
    """Seconds since a time."""
    return (datetime.datetime.now(datetime.timezone.utc) - t).total_seconds()


def span(t):
    """A length of time, exactly and as PostgreSQL reads it: 1 day 30 min."""
    ms, parts = (t.days * 86400 + t.seconds) * 1000 + t.microseconds // 1000, []
    for unit, one in (("days", 86400000), ("h", 3600000), ("min", 60000), ("s", 1000), ("ms", 1)):
        n, ms = divmod(ms, one)
        if n:
            parts.append("%d %s" % (n, "day" if unit == "days" and n == 1 else unit))
    return " ".join(parts) or "0 s"


# An interval in a text of JSON, as the audit has it.
CLOCK = re.compile(r'"(?:(\d+) days? ?)?(\d+):(\d\d):(\d\d(?:\.\d+)?)"')


def spans(text):
    """The text with its intervals like span()."""
    return CLOCK.sub(lambda m: span(datetime.timedelta(days=int(m[1] or 0), hours=int(m[2]), minutes=int(m[3]), seconds=float(m[4]))), text)


def short(n):
    """The beginning and the end of a UUID."""
    return "%s…%s" % (str(n)[:8], str(n)[-4:])
