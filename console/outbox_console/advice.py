"""What a delivery waits for, what comes next, and which action repairs it."""

import difflib

from . import words


class Advice:
    """A verdict in a sentence, reasons, and actions: (name of the action, words, whether it comes first, fields)."""

    def __init__(self, kind, sentence):
        self.kind, self.sentence, self.why, self.actions = kind, sentence, [], []

    def offer(self, action, name, first=False, **fields):
        """Adds an action.  The first one that comes first is the one that stands out."""
        self.actions.append((action, name, first and not any(a[2] for a in self.actions), fields))


# What to do about a dead delivery, by its reason.  Those that are not here are sent again once their receiver is mended.
NEXT = {
    "expired": "It is never sent after that time, also if it is asked for. If it is still wanted, the application emits it again.",
    "invalid event": "As it is, no request can be made of it: the application emits it again, corrected.",
    "filter failed": "Change the filter of the endpoint, and then send it again.",
    "event is gone": "It cannot be sent again.",
    "unreadable": "It cannot be sent again before the event can be read.",
    "aborted by receiver": "Ask its owner why. Once it takes such events, send this one again.",
}
# When an endpoint that sends nothing goes on, by its state.
UNTIL = {"paused": "is resumed", "disabled": "is resumed", "held": "is not held", "unverified": "is verified"}
LOST = ("expired", "invalid event", "event is gone")


def of_endpoint(advice, name, stats):
    """What holds the endpoint up, and the action that ends it.  Returns true if nothing is sent to it."""
    if not stats or (stats["state"] == "active" and not stats["reason"]):
        return False
    state, due = stats["state"], stats["next_attempt_at"]
    said = {"active": "The endpoint waits", "backing_off": "The endpoint backs off, because its receiver fails"}.get(state, "The endpoint is %s" % state)
    advice.why.append((said + (": %s" % stats["reason"] if stats["reason"] else "") + ".", due if state in ("active", "backing_off") else None,
                       "The next request is at"))
    if state in ("paused", "disabled"):
        advice.offer("resume", "Resume %s" % name, True, endpoint=name)
    elif state != "held":
        advice.offer("resume", "Ask its receiver again" if state == "unverified" else "Try it now", True, endpoint=name)
    return state in UNTIL


def of_delivery(d, stats, settings, head):
    """The advice about a row of outbox.deliveries.  'head' is the delivery that it waits behind, where that is known."""
    name, event, status = d["endpoint"], str(d["event_id"]), d["status"]
    kind = {"delivered": "good", "dead": "bad", "retrying": "warn", "blocked": "warn"}.get(status, "unknown")
    advice = Advice(kind, words.STATUSES[status])
    own = {"endpoint": name, "event": event}
    if status == "delivered":
        advice.why.append(("It was answered with %s. A receiver that has lost it may be sent it again, with the same webhook-id."
                           % (d["last_status_code"] or "2xx"), None, ""))
        advice.offer("resend", "Send again", **own)
    elif status == "dead":
        reason = d["reason"] or ""
        advice.sentence = "It was given up: %s." % words.REASONS.get(reason, reason or "the reason is not known")
        advice.why.append((NEXT.get(reason, "Once its receiver is mended, send it again."), None, ""))
        if reason == "filter failed":
            advice.offer("alter", "Change the filter", True, endpoint=name)
        if reason not in LOST:
            of_endpoint(advice, name, stats)
            advice.offer("retry", "Send again now", True, **own)
        advice.offer("discard", "Discard", **own)
    elif status == "scheduled":
        at = d["next_attempt_at"]
        advice.why.append(("It could not enter the log." if d["reason"] else "Its deliver_at has not come." if at and words.age(at) < 0
                           else "Its time has come: it enters the log in a moment.", at, "It is tried again at" if d["reason"] else "It is sent at"))
    elif status in ("pending", "processing", "retrying", "blocked"):
        stopped = of_endpoint(advice, name, stats)
        if status == "pending" and stopped:
            advice.sentence = "It is sent once the endpoint %s." % UNTIL[stats["state"]]
        if status == "retrying":
            tries = settings and settings["max_attempts"]
            advice.sentence = "The last attempt failed, or it is to be sent again." + (" It is not sent before the endpoint %s." % UNTIL[stats["state"]] if stopped else "")
            if not stopped:
                advice.why.append(("It is tried by itself%s." % (", for the %d. of %d times" % (d["attempts"] + 1, tries) if tries else ""),
                                   None if advice.why else d["next_attempt_at"], "Next at"))
                advice.offer("retry", "Send again now", True, **own)
        if status == "blocked" and head:
            other = {"endpoint": name, "event": str(head["event_id"])}
            advice.offer("retry", "Send the one before it now", True, **other)
            advice.offer(*(("discard", "Discard the one before it") if head["status"] == "dead" else ("cancel", "Take back the one before it")), **other)
    if status in ("pending", "retrying", "blocked", "scheduled"):
        advice.offer("cancel", "Take it back", **own)
    return advice


def like(tenant, others):
    """Tenants of nearly this name, as after a slip of a key."""
    return difflib.get_close_matches(tenant, others, 3, 0.75)
