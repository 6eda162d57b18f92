/*
 * status.c
 *	  Owns whether requests may be sent to an endpoint, and why not.
 */
#include "base/outbox.h"

#include "base/log_lines.h"
#include "base/memory.h"
#include "base/settings.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"

/*
 * A period of failing ends when so long (µs) nothing has failed, or twice backoff_max if
 * that is longer.  Then there was nothing to send, and a failure of long ago says nothing
 * about the receiver now.
 */
#define SILENCE USECS_PER_DAY

#define STUCK_AFTER USECS_PER_SEC

static int64 clock_ahead; /* µs that the clock was set forward by */

void
outbox_status_clock_ahead(int64 by)
{
	clock_ahead += by;
}

bool
outbox_status_is_stuck(const OutboxEndpoint *ep)
{
	return ep->status.stuck_until != 0 && GetCurrentTimestamp() < ep->status.stuck_until;
}

bool
outbox_status_is_unverified(const OutboxEndpoint *ep)
{
	return ep->proof != NULL && ep->proof->challenge != OUTBOX_CHALLENGE_NONE;
}

bool
outbox_status_is_off(const OutboxEndpoint *ep)
{
	return ep->status.paused || ep->status.disabled || ep->member.dropped ||
		ep->status.held_for || outbox_status_is_stuck(ep) ||
		outbox_status_is_unverified(ep);
}

/* True if all of its slots have been taken for a while: its receiver may hang. */
static bool
is_stuck(const OutboxEndpoint *ep, TimestampTz now)
{
	return ep->queue->nin_flight > 0 &&
		!outbox_pace_has_slot(&ep->pace, ep->queue->nin_flight) &&
		dlist_head_element(OutboxDelivery, node, &ep->queue->in_flight)->started_at <
		now - STUCK_AFTER;
}

bool
outbox_status_is_shut(const OutboxEndpoint *ep, TimestampTz now)
{
	return outbox_status_is_off(ep) || ep->status.unstorable ||
		ep->link->state == OUTBOX_LINK_DOWN || now < ep->pace.retry_at ||
		is_stuck(ep, now);
}

bool
outbox_status_is_ready(OutboxEndpoint *ep, TimestampTz now)
{
	return !outbox_status_is_shut(ep, now) &&
		outbox_pace_allows(&ep->pace, ep->queue->nin_flight, now);
}

bool
outbox_status_may_send(OutboxEndpoint *ep, TimestampTz now)
{
	return outbox_status_is_ready(ep, now) && outbox_tenant_allows(ep->tenant, now);
}

/*
 * Every second probe is an event that was not sent before, if there is one.  So events
 * that always fail do not keep the breaker open for all others.  A probe that follows no
 * wait was asked for, perhaps for an event that is parked.  Where memory is short, one
 * event that waits behind its key is enough, and a parked event is tried.
 */
bool
outbox_status_probes_new(const OutboxEndpoint *ep)
{
	return ep->pace.breaker == OUTBOX_BREAKER_OPEN && ep->pace.openings % 2 == 0 &&
		ep->pace.retry_at != 0 && ep->config.ordering != OUTBOX_ORDER_STRICT &&
		!outbox_endpoint_waits_full(ep) &&
		(ep->queue->nwaiting == 0 || !outbox_memory_is_short()) &&
		(ep->feed->backlog > 0 || !outbox_is_counted(ep));
}

void
outbox_status_stop_failing(OutboxEndpoint *ep)
{
	ep->status.failing_since = 0;
	ep->status.failing_told = ep->status.failing_fresh = false;
}

/*
 * The time that the clock was set forward by is no time of failing.  A time in the
 * future counts as now.
 */
static void
follow_clock(OutboxEndpointStatus *s, TimestampTz now)
{
	int64 by = clock_ahead - s->clock_ahead;

	s->clock_ahead = clock_ahead;
	s->failing_since = Min(s->failing_since + by, now);
	s->failed_at = Min(s->failed_at + by, now);
}

static void
note_failure(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxEndpointStatus *s = &ep->status;

	if (s->failing_since != 0)
	{
		follow_clock(s, now);
		if (now - s->failed_at > Max(SILENCE, 2 * ep->pace.limits.backoff_max))
			outbox_status_stop_failing(ep);
	}
	if (s->failing_since == 0)
		outbox_status_failing_since(ep, now, now);
	s->failed_at = now;
}

void
outbox_status_failing_since(OutboxEndpoint *ep, TimestampTz since, TimestampTz last)
{
	ep->status.failing_since = since;
	ep->status.failed_at = last;
	ep->status.clock_ahead = clock_ahead;
}

void
outbox_status_success(OutboxEndpoint *ep, TimestampTz now)
{
	outbox_status_stop_failing(ep);
	if (outbox_pace_success(&ep->pace, now))
	{
		ep->status.recovered = true;
		ep->status.state_since = now;
		if (outbox_log_line_may(OUTBOX_LINE_ANSWERS, ep->config.name))
			ereport(LOG,
					(errmsg("outbox endpoint \"%s\" answers again", ep->config.name)));
	}
	outbox_pace_ramp_up(&ep->pace, now);
}

void
outbox_status_failure(OutboxEndpoint *ep, const OutboxDelivery *d, bool refused,
					  TimestampTz now)
{
	bool opened = false;

	if (refused && outbox_pace_refusal(&ep->pace, d->event->topic, d->seq, now))
		outbox_pace_ramp_up(&ep->pace, now); /* it is a sign of life */
	else
		opened = outbox_pace_failure(&ep->pace, d->seq, d->probe, now);
	if (opened)
	{
		outbox_tally_count(ep, OUTBOX_COUNT_OPENINGS);
		ep->status.state_since = now;
		ep->feed->drop_window = true;
		if (outbox_log_line_may(OUTBOX_LINE_BACKS_OFF, ep->config.name))
			ereport(
				LOG,
				(errmsg(
					"outbox endpoint \"%s\" is backing off after %d failures in a row: %s",
					ep->config.name, ep->pace.failures.n, ep->tally->last_error)));
	}

	/* A request that was in flight when it was switched off begins no new period. */
	if (outbox_status_is_off(ep))
		return;
	note_failure(ep, now);
	if (ep->config.disable_after > 0 &&
		now - ep->status.failing_since >= ep->config.disable_after)
		outbox_status_disable(ep, OUTBOX_FAILED_TOO_LONG, now);
}

/* True if it could soon send something that failed before. */
static bool
something_waits(const OutboxEndpoint *ep)
{
	return ep->tally->last_error != NULL &&
		(ep->pace.breaker == OUTBOX_BREAKER_OPEN || ep->queue->nretries > 0);
}

void
outbox_status_check_failing(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->status.failing_since == 0)
		return;
	follow_clock(&ep->status, now);
	if (ep->status.paused)
	{
		outbox_status_stop_failing(ep);
		ep->place.dirty = true; /* so that this is stored */
	}
	else if (!ep->status.disabled && !ep->status.failing_told && something_waits(ep) &&
			 now - ep->status.failing_since >= outbox_failing_after * USECS_PER_SEC)
	{
		ep->status.failing_told = ep->status.failing_fresh = true;
		ep->place.dirty = true;
		if (outbox_log_line_may(OUTBOX_LINE_FAILING, ep->config.name))
			ereport(
				LOG,
				(errmsg(
					"outbox endpoint \"%s\" has failed without a success since %s: %s",
					ep->config.name, timestamptz_to_str(ep->status.failing_since),
					ep->tally->last_error)));
	}
}

TimestampTz
outbox_status_failing_at(const OutboxEndpoint *ep)
{
	return ep->status.failing_since == 0 || ep->status.failing_told ||
			ep->status.disabled || !something_waits(ep) ?
		DT_NOEND :
		ep->status.failing_since + outbox_failing_after * USECS_PER_SEC;
}

/*
 * The words of a sink may come from its server, which may be hostile: they go into views
 * and into the log.
 */
static void
copy_printable(char *to, const char *from, size_t size)
{
	strlcpy(to, from, size);
	for (; *to; to++)
		if (*to < 0x20 || *to > 0x7e)
			*to = '?';
}

void
outbox_status_link(OutboxEndpoint *ep, OutboxLinkState state, const char *reason,
				   TimestampTz now)
{
	bool up = state == OUTBOX_LINK_UP;
	bool was_up = ep->link->state == OUTBOX_LINK_UP;
	char words[sizeof(ep->link->reason)];

	copy_printable(words, reason, sizeof(words));
	ep->link->state = state;
	if (up == was_up && strcmp(ep->link->reason, words) == 0)
		return;
	if (up != was_up)
		ep->status.state_since = now;
	strlcpy(ep->link->reason, words, sizeof(ep->link->reason));
	if (up && was_up)
		return; /* nothing has happened, and views show the words */
	if (!outbox_log_line_may(up ? OUTBOX_LINE_LINK : OUTBOX_LINE_NO_LINK,
							 ep->config.name))
		return;
	if (up)
		ereport(LOG, (errmsg("outbox endpoint \"%s\" is connected", ep->config.name)));
	else
		ereport(LOG,
				(errmsg("outbox endpoint \"%s\" sends nothing: %s", ep->config.name,
						ep->link->reason)));
}

void
outbox_status_disable(OutboxEndpoint *ep, const char *reason, TimestampTz now)
{
	if (ep->status.disabled || ep->status.paused)
		return;
	ep->status.disabled = true;
	ep->status.state_dirty = true;
	ep->feed->drop_window = true;
	ep->status.state_since = now;
	ep->status.reason = reason;
	if (outbox_log_line_may(OUTBOX_LINE_DISABLED, ep->config.name))
		ereport(LOG,
				(errmsg("outbox endpoint \"%s\" is disabled: %s", ep->config.name,
						ep->status.reason),
				 errhint("outbox.resume_endpoint('%s') continues where it stopped.",
						 ep->config.name)));
}
