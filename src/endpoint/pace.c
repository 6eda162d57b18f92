/*
 * pace.c
 *	  Owns how fast an endpoint is sent to: slots, rate, backoff, breaker.
 */
#include "base/outbox.h"

#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "endpoint/pace.h"

/*
 * Full jitter: anything between nothing and the exponential bound, so that
 * what failed together does not come back together.  A floor of a tenth keeps
 * a retry from following its failure at once.
 */
int64
outbox_backoff(int attempt, int64 base, int64 max, double random)
{
	double		bound = (double) base;

	for (int i = 1; i < attempt && bound < (double) max; i++)
		bound *= 2;
	bound = Min(bound, (double) max);
	return (int64) (bound * (0.1 + 0.9 * random));
}

int64
outbox_pace_backoff(OutboxEndpoint *ep, int attempt)
{
	return outbox_backoff(attempt, ep->config.backoff_base, ep->config.backoff_max,
						  pg_prng_double(&pg_global_prng_state));
}

/* After a slow-down slots double, at most once a second. */
void
outbox_pace_ramp_up(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->pace.slots < ep->config.max_in_flight && now >= ep->pace.ramp_at)
	{
		ep->pace.slots = Min(ep->pace.slots * 2, ep->config.max_in_flight);
		ep->pace.ramp_at = now + USECS_PER_SEC;
	}
}

static void
refill_tokens(OutboxEndpoint *ep, TimestampTz now)
{
	double		most = Max(1.0, ep->config.rate_limit / 10);

	if (now > ep->pace.tokens_at)
		ep->pace.tokens = Min(most, ep->pace.tokens + ep->config.rate_limit *
						 (now - ep->pace.tokens_at) / USECS_PER_SEC);
	ep->pace.tokens_at = now;
}

TimestampTz
outbox_pace_token_at(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->config.rate_limit == 0)
		return now;
	refill_tokens(ep, now);
	return ep->pace.tokens >= 1 ? now :
		now + (int64) ((1 - ep->pace.tokens) / ep->config.rate_limit * USECS_PER_SEC) + 1;
}

/*
 * Failures in a row take their slots along: who goes down leaves no more
 * deliveries behind than were in flight.
 */
bool
outbox_pace_has_slot(const OutboxEndpoint *ep)
{
	int			slots = Min(ep->pace.slots, ep->config.max_in_flight) - ep->pace.failures;

	return ep->queue.nin_flight < Max(slots, 1);
}

bool
outbox_endpoint_may_send(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->status.paused || ep->status.disabled || ep->member.dropped || ep->status.held_for || ep->status.unstorable)
		return false;
	if (now < ep->pace.retry_at)
		return false;
	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN)
		return ep->queue.nin_flight == 0;
	if (!outbox_pace_has_slot(ep))
		return false;
	return outbox_pace_token_at(ep, now) <= now;
}

void
outbox_pace_success(OutboxEndpoint *ep, TimestampTz now)
{
	ep->pace.failures = 0;
	ep->pace.failing_events = 0;
	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN)
	{
		ep->pace.breaker = OUTBOX_BREAKER_CLOSED;
		ep->pace.openings = 0;
		ep->status.recovered = true;
		ep->status.state_since = now;
		ep->pace.slots = 1;
		ep->pace.ramp_at = now + USECS_PER_SEC;
		ep->pace.retry_at = 0;
		ereport(LOG, (errmsg("outbox endpoint \"%s\" answers again", ep->config.name)));
	}
}

void
outbox_pace_failure(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	bool		known = false;

	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN)
	{
		/* Only the probe says something; what was in flight before does not. */
		if (d->probe)
			ep->pace.retry_at = Max(ep->pace.retry_at, now + outbox_pace_backoff(ep, ++ep->pace.openings));
		return;
	}

	ep->pace.failures++;
	for (int i = 0; i < ep->pace.failing_events; i++)
		known = known || ep->pace.failing_seq[i] == d->seq;
	if (!known && ep->pace.failing_events < OUTBOX_BREAKER_EVENTS)
		ep->pace.failing_seq[ep->pace.failing_events++] = d->seq;
	if (ep->pace.failures < OUTBOX_BREAKER_FAILURES ||
		ep->pace.failing_events < OUTBOX_BREAKER_EVENTS)
		return;

	ep->pace.breaker = OUTBOX_BREAKER_OPEN;
	ep->status.state_since = now;
	ep->pace.openings = 1;
	ep->pace.retry_at = Max(ep->pace.retry_at, now + outbox_pace_backoff(ep, 1));
	ep->feed.drop_window = true;
	ereport(LOG, (errmsg("outbox endpoint \"%s\" is backing off: %d failures in a row, the last: %s",
						 ep->config.name, ep->pace.failures, ep->tally.last_error)));
}

/* Answers that speak for the whole endpoint, not for one event. */
void
outbox_pace_slow_down(OutboxEndpoint *ep, const OutboxOutcome *o, TimestampTz now)
{
	int64		wait = o->retry_after >= 0 ? o->retry_after : 0;

	/* seconds beyond any backoff_max would overflow */
	wait = Min(wait, ep->config.backoff_max / USECS_PER_SEC + 1) * USECS_PER_SEC;
	ep->pace.retry_at = Max(ep->pace.retry_at, now + Min(wait, ep->config.backoff_max));
	ep->pace.slots = Max(1, Min(ep->pace.slots, ep->config.max_in_flight) / 2);
	ep->pace.ramp_at = now + USECS_PER_SEC;
}
