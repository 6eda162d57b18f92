/*
 * status.c
 *	  Owns whether requests may be sent to an endpoint, and why not.
 */
#include "base/outbox.h"

#include "endpoint/status.h"

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

void
outbox_status_success(OutboxEndpoint *ep, TimestampTz now)
{
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
	if (!outbox_pace_failure(&ep->pace, d->seq, d->probe, now))
		return;
	ep->status.state_since = now;
	ep->feed.drop_window = true;
	ereport(
		LOG,
		(errmsg("outbox endpoint \"%s\" is backing off after %d failures in a row: %s",
				ep->config.name, ep->pace.failures, ep->tally.last_error)));
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
