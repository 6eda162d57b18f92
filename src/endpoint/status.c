/*
 * status.c
 *	  Owns whether requests may be sent to an endpoint, and why not.
 */
#include "base/outbox.h"

#include "utils/timestamp.h"

#include "base/settings.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"

bool
outbox_status_is_off(const OutboxEndpoint *ep)
{
	return ep->status.paused || ep->status.disabled || ep->member.dropped ||
		ep->status.held_for;
}

bool
outbox_status_may_send(OutboxEndpoint *ep, TimestampTz now)
{
	return !outbox_status_is_off(ep) && !ep->status.unstorable &&
		outbox_pace_allows(&ep->pace, ep->queue.nin_flight, now);
}

static void
stop_failing(OutboxEndpoint *ep)
{
	ep->status.failing_since = 0;
	ep->status.failing_told = ep->status.failing_fresh = false;
}

void
outbox_status_success(OutboxEndpoint *ep, TimestampTz now)
{
	stop_failing(ep);
	if (outbox_pace_success(&ep->pace, now))
	{
		ep->status.recovered = true;
		ep->status.state_since = now;
		ereport(LOG, (errmsg("outbox endpoint \"%s\" answers again", ep->config.name)));
	}
	outbox_pace_ramp_up(&ep->pace, now);
}

void
outbox_status_failure(OutboxEndpoint *ep, const OutboxDelivery *d, TimestampTz now)
{
	if (ep->status.failing_since == 0)
		ep->status.failing_since = now;
	if (!outbox_pace_failure(&ep->pace, d->seq, d->probe, now))
		return;
	outbox_tally_count(ep, OUTBOX_COUNT_OPENINGS);
	ep->status.state_since = now;
	ep->feed.drop_window = true;
	ereport(
		LOG,
		(errmsg("outbox endpoint \"%s\" is backing off after %d failures in a row: %s",
				ep->config.name, ep->pace.failures, ep->tally.last_error)));
}

void
outbox_status_check_failing(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->status.failing_since == 0)
		return;
	if (ep->status.paused || ep->status.disabled)
	{
		stop_failing(ep);
		ep->place.dirty = true; /* so that this is stored */
	}
	else if (!ep->status.failing_told && ep->tally.last_error != NULL &&
			 (ep->pace.breaker == OUTBOX_BREAKER_OPEN || ep->queue.nretries > 0) &&
			 now - ep->status.failing_since >= outbox_failing_after * USECS_PER_SEC)
	{
		ep->status.failing_told = ep->status.failing_fresh = true;
		ep->place.dirty = true;
		ereport(
			LOG,
			(errmsg("outbox endpoint \"%s\" has failed without a success since %s: %s",
					ep->config.name, timestamptz_to_str(ep->status.failing_since),
					ep->tally.last_error)));
	}
}

void
outbox_status_disable(OutboxEndpoint *ep, const char *reason, TimestampTz now)
{
	if (ep->status.disabled)
		return;
	ep->status.disabled = true;
	ep->status.state_dirty = true;
	ep->feed.drop_window = true;
	ep->status.state_since = now;
	strlcpy(ep->status.reason, reason, sizeof(ep->status.reason));
	ereport(LOG,
			(errmsg("outbox endpoint \"%s\" is disabled: %s", ep->config.name,
					ep->status.reason),
			 errhint("outbox.resume_endpoint('%s') continues where it stopped.",
					 ep->config.name)));
}
