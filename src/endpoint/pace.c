/*
 * pace.c
 *	  Owns how fast requests are sent to an endpoint: slots, rate, backoff, breaker.
 */
#include "base/outbox.h"

#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "endpoint/pace.h"

/*
 * Full jitter: the wait is a random part of the exponential bound, so that what
 * failed together does not come back together.  It is at least a tenth of the
 * bound, so that a retry does not follow its failure at once.
 */
int64
outbox_backoff(int attempt, int64 base, int64 max, double random)
{
	double bound = (double) base;

	for (int i = 1; i < attempt && bound < (double) max; i++)
		bound *= 2;
	bound = Min(bound, (double) max);
	return (int64) (bound * (0.1 + 0.9 * random));
}

int64
outbox_pace_backoff(const OutboxPace *p, int attempt)
{
	return outbox_backoff(attempt, p->limits.backoff_base, p->limits.backoff_max,
						  pg_prng_double(&pg_global_prng_state));
}

void
outbox_pace_ramp_up(OutboxPace *p, TimestampTz now)
{
	if (p->slots < p->limits.max_in_flight && now >= p->ramp_at)
	{
		p->slots = Min(p->slots * 2, p->limits.max_in_flight);
		p->ramp_at = now + USECS_PER_SEC;
	}
}

static void
refill_tokens(OutboxPace *p, TimestampTz now)
{
	double most = Max(1.0, p->limits.rate_limit / 10);

	if (now <= p->tokens_at)
		return; /* a moment ago.  When the clock is set back, the worker starts again. */
	p->tokens = Min(most,
					p->tokens +
						p->limits.rate_limit * (now - p->tokens_at) / USECS_PER_SEC);
	p->tokens_at = now;
}

void
outbox_pace_set_limits(OutboxPace *p, const OutboxPaceLimits *limits)
{
	p->limits = *limits;
	if (p->slots == 0 || (p->breaker == OUTBOX_BREAKER_CLOSED && p->ramp_at == 0))
		p->slots = limits->max_in_flight;
}

TimestampTz
outbox_pace_token_at(OutboxPace *p, TimestampTz now)
{
	if (p->limits.rate_limit == 0)
		return now;
	refill_tokens(p, now);
	return p->tokens >= 1 ?
		now :
		now + (int64) ((1 - p->tokens) / p->limits.rate_limit * USECS_PER_SEC) + 1;
}

void
outbox_pace_take_token(OutboxPace *p)
{
	if (p->limits.rate_limit > 0)
		p->tokens -= 1;
}

void
outbox_pace_return_token(OutboxPace *p)
{
	if (p->limits.rate_limit > 0)
		p->tokens += 1;
}

void
outbox_pace_resume(OutboxPace *p)
{
	p->retry_at = 0;
}

/*
 * Each failure in a row takes a slot away.  So a receiver that goes down makes no
 * more deliveries fail than were in flight.
 */
bool
outbox_pace_has_slot(const OutboxPace *p, int in_flight)
{
	int slots = Min(p->slots, p->limits.max_in_flight) - p->failures;

	return in_flight < Max(slots, 1);
}

bool
outbox_pace_allows(OutboxPace *p, int in_flight, TimestampTz now)
{
	if (now < p->retry_at)
		return false;
	if (p->breaker == OUTBOX_BREAKER_OPEN)
		return in_flight == 0;
	return outbox_pace_has_slot(p, in_flight) && outbox_pace_token_at(p, now) <= now;
}

bool
outbox_pace_success(OutboxPace *p, uint32 topic, TimestampTz now)
{
	for (int i = 0; i < OUTBOX_REFUSED_TOPICS; i++)
		if (topic == 0 || p->refused[i].topic == topic)
			p->refused[i] = (OutboxRefused){0};
	p->refusals_paid = OUTBOX_REFUSALS_PAID;
	p->failures = 0;
	p->failing_events = 0;
	if (p->breaker == OUTBOX_BREAKER_CLOSED)
		return false;
	p->breaker = OUTBOX_BREAKER_CLOSED;
	p->openings = 0;
	p->slots = 1;
	p->ramp_at = now + USECS_PER_SEC;
	p->retry_at = 0;
	return true;
}

/* A topic for which there is no room counts for the endpoint alone. */
bool
outbox_pace_refusal(OutboxPace *p, uint32 topic)
{
	OutboxRefused *r = NULL;

	for (int i = 0; i < OUTBOX_REFUSED_TOPICS; i++)
		if (p->refused[i].topic == topic || (r == NULL && p->refused[i].topic == 0))
			r = &p->refused[i];
	if (r == NULL)
		return false;
	r->topic = topic;
	r->refusals = Min(r->refusals + 1, OUTBOX_BREAKER_FAILURES);
	return p->breaker == OUTBOX_BREAKER_CLOSED && outbox_pace_refuses(p, topic) &&
		p->refusals_paid-- > 0;
}

bool
outbox_pace_refuses(const OutboxPace *p, uint32 topic)
{
	for (int i = 0; i < OUTBOX_REFUSED_TOPICS; i++)
		if (p->refused[i].refusals >= OUTBOX_BREAKER_FAILURES &&
			(topic == 0 || p->refused[i].topic == topic))
			return true;
	return false;
}

/* The first probe goes out at once, and one that fails waits as long as before. */
void
outbox_pace_reopen(OutboxPace *p, int openings)
{
	p->breaker = OUTBOX_BREAKER_OPEN;
	p->openings = openings;
}

void
outbox_pace_wait(OutboxPace *p, TimestampTz until)
{
	p->retry_at = Max(p->retry_at, until);
}

/* The wait doubles with each probe that fails. */
static void
wait_for_probe(OutboxPace *p, TimestampTz now)
{
	outbox_pace_wait(p, now + outbox_pace_backoff(p, ++p->openings));
}

bool
outbox_pace_failure(OutboxPace *p, int64 seq, bool probe, TimestampTz now)
{
	bool known = false;

	if (p->breaker == OUTBOX_BREAKER_OPEN)
	{
		/* Only a probe counts, not what was in flight when the breaker opened. */
		if (probe)
			wait_for_probe(p, now);
		return false;
	}

	p->failures++;
	for (int i = 0; i < p->failing_events; i++)
		known = known || p->failing_seq[i] == seq;
	if (!known && p->failing_events < OUTBOX_BREAKER_EVENTS)
		p->failing_seq[p->failing_events++] = seq;
	if (p->failures < OUTBOX_BREAKER_FAILURES ||
		p->failing_events < OUTBOX_BREAKER_EVENTS)
		return false;

	p->breaker = OUTBOX_BREAKER_OPEN;
	p->openings = 0;
	wait_for_probe(p, now);
	return true;
}

void
outbox_pace_slow_down(OutboxPace *p, int64 retry_after, TimestampTz now)
{
	int64 wait = Max(retry_after, 0);

	/* seconds beyond any backoff_max would overflow */
	wait = Min(wait, p->limits.backoff_max / USECS_PER_SEC + 1) * USECS_PER_SEC;
	outbox_pace_wait(p, now + Min(wait, p->limits.backoff_max));
	p->slots = Max(1, Min(p->slots, p->limits.max_in_flight) / 2);
	p->ramp_at = now + USECS_PER_SEC;
}
