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
	return outbox_backoff(attempt, ep->backoff_base, ep->backoff_max,
						  pg_prng_double(&pg_global_prng_state));
}

/* After a slow-down slots double, at most once a second. */
void
outbox_pace_ramp_up(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->slots < ep->max_in_flight && now >= ep->ramp_at)
	{
		ep->slots = Min(ep->slots * 2, ep->max_in_flight);
		ep->ramp_at = now + USECS_PER_SEC;
	}
}

static void
refill_tokens(OutboxEndpoint *ep, TimestampTz now)
{
	double		most = Max(1.0, ep->rate_limit / 10);

	if (now > ep->tokens_at)
		ep->tokens = Min(most, ep->tokens + ep->rate_limit *
						 (now - ep->tokens_at) / USECS_PER_SEC);
	ep->tokens_at = now;
}

TimestampTz
outbox_pace_token_at(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->rate_limit == 0)
		return now;
	refill_tokens(ep, now);
	return ep->tokens >= 1 ? now :
		now + (int64) ((1 - ep->tokens) / ep->rate_limit * USECS_PER_SEC) + 1;
}

/*
 * Failures in a row take their slots along: who goes down leaves no more
 * deliveries behind than were in flight.
 */
bool
outbox_pace_has_slot(const OutboxEndpoint *ep)
{
	int			slots = Min(ep->slots, ep->max_in_flight) - ep->failures;

	return ep->nin_flight < Max(slots, 1);
}

bool
outbox_endpoint_may_send(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->paused || ep->disabled || ep->dropped || ep->held_for || ep->unstorable)
		return false;
	if (now < ep->retry_at)
		return false;
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		return ep->nin_flight == 0;
	if (!outbox_pace_has_slot(ep))
		return false;
	return outbox_pace_token_at(ep, now) <= now;
}

void
outbox_pace_success(OutboxEndpoint *ep, TimestampTz now)
{
	ep->failures = 0;
	ep->failing_events = 0;
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
	{
		ep->breaker = OUTBOX_BREAKER_CLOSED;
		ep->openings = 0;
		ep->recovered = true;
		ep->state_since = now;
		ep->slots = 1;
		ep->ramp_at = now + USECS_PER_SEC;
		ep->retry_at = 0;
		ereport(LOG, (errmsg("outbox endpoint \"%s\" answers again", ep->name)));
	}
}

void
outbox_pace_failure(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	bool		known = false;

	if (ep->breaker == OUTBOX_BREAKER_OPEN)
	{
		/* Only the probe says something; what was in flight before does not. */
		if (d->probe)
			ep->retry_at = Max(ep->retry_at, now + outbox_pace_backoff(ep, ++ep->openings));
		return;
	}

	ep->failures++;
	for (int i = 0; i < ep->failing_events; i++)
		known = known || ep->failing_seq[i] == d->seq;
	if (!known && ep->failing_events < OUTBOX_BREAKER_EVENTS)
		ep->failing_seq[ep->failing_events++] = d->seq;
	if (ep->failures < OUTBOX_BREAKER_FAILURES ||
		ep->failing_events < OUTBOX_BREAKER_EVENTS)
		return;

	ep->breaker = OUTBOX_BREAKER_OPEN;
	ep->state_since = now;
	ep->openings = 1;
	ep->retry_at = Max(ep->retry_at, now + outbox_pace_backoff(ep, 1));
	ep->drop_window = true;
	ereport(LOG, (errmsg("outbox endpoint \"%s\" is backing off: %d failures in a row, the last: %s",
						 ep->name, ep->failures, ep->last_error)));
}

/* Answers that speak for the whole endpoint, not for one event. */
void
outbox_pace_slow_down(OutboxEndpoint *ep, const OutboxOutcome *o, TimestampTz now)
{
	int64		wait = o->retry_after >= 0 ? o->retry_after : 0;

	/* seconds beyond any backoff_max would overflow */
	wait = Min(wait, ep->backoff_max / USECS_PER_SEC + 1) * USECS_PER_SEC;
	ep->retry_at = Max(ep->retry_at, now + Min(wait, ep->backoff_max));
	ep->slots = Max(1, Min(ep->slots, ep->max_in_flight) / 2);
	ep->ramp_at = now + USECS_PER_SEC;
}
