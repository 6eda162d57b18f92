/*
 * pace.c
 *	  Owns how fast requests are sent to an endpoint: slots, rate, backoff, breaker, topics
 *	  that are refused.
 */
#include "base/outbox.h"

#include "common/pg_prng.h"

#include "endpoint/pace.h"

/*
 * Full jitter: the wait is a random part of the exponential bound, so that deliveries
 * that failed together do not come back together.  It is at least a tenth of the bound,
 * so that a retry does not follow its failure at once.
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
	for (int i = 0; p->refused != NULL && i < OUTBOX_REFUSED_TOPICS; i++)
		p->refused[i].retry_at = Min(p->refused[i].retry_at, 1);
}

/*
 * Each failure in a row takes a slot away.  So a receiver that goes down makes no
 * more deliveries fail than were in flight.
 */
bool
outbox_pace_has_slot(const OutboxPace *p, int in_flight)
{
	int slots = Min(p->slots, p->limits.max_in_flight) - p->failures.n;

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

/* True: it is not one event that fails again and again. */
static bool
count_failure(OutboxFailures *f, int64 seq)
{
	bool known = false;

	f->n++;
	for (int i = 0; i < f->events; i++)
		known = known || f->seq[i] == seq;
	if (!known && f->events < OUTBOX_BREAKER_EVENTS)
		f->seq[f->events++] = seq;
	return f->n >= OUTBOX_BREAKER_FAILURES && f->events >= OUTBOX_BREAKER_EVENTS;
}

bool
outbox_pace_success(OutboxPace *p, TimestampTz now)
{
	p->refusals_paid = OUTBOX_REFUSALS_PAID;
	p->failures = (OutboxFailures){0};
	if (p->breaker == OUTBOX_BREAKER_CLOSED)
		return false;
	p->breaker = OUTBOX_BREAKER_CLOSED;
	p->openings = 0;
	p->slots = 1;
	p->ramp_at = now + USECS_PER_SEC;
	p->retry_at = 0;
	return true;
}

static OutboxRefused *
find_topic(const OutboxPace *p, const char *topic)
{
	for (int i = 0; p->refused != NULL && i < OUTBOX_REFUSED_TOPICS; i++)
		if (strcmp(p->refused[i].topic, topic) == 0)
			return &p->refused[i];
	return NULL;
}

/* A topic that was not refused for so long, or two backoff_max, gives its place up. */
#define REFUSED_FOR (10 * 60 * USECS_PER_SEC)

/*
 * Returns the place of the topic, or one for it.  NULL: there is none.  An event that
 * waits is sent within two backoff_max, so none waits of a topic that was refused before.
 */
static OutboxRefused *
place_for(const OutboxPace *p, const char *topic, TimestampTz now)
{
	OutboxRefused *r = find_topic(p, topic);

	if (r == NULL)
		r = find_topic(p, "");
	for (int i = 0; r == NULL && i < OUTBOX_REFUSED_TOPICS; i++)
		if (now - p->refused[i].refused_at > Max(2 * p->limits.backoff_max, REFUSED_FOR))
		{
			r = &p->refused[i];
			*r = (OutboxRefused){0};
		}
	return r;
}

/*
 * A topic for which there is no room counts for the endpoint alone.  A request that was
 * in flight when it came to be refused is no probe.
 */
bool
outbox_pace_refusal(OutboxPace *p, const char *topic, int64 seq, TimestampTz now)
{
	OutboxRefused *r;

	if (p->refused == NULL)
		p->refused = MemoryContextAllocZero(TopMemoryContext,
											sizeof(OutboxRefused) *
												OUTBOX_REFUSED_TOPICS);
	if ((r = place_for(p, topic, now)) == NULL)
		return false;
	strlcpy(r->topic, topic, sizeof(r->topic));
	r->refused_at = now;
	if (!count_failure(&r->refusals, seq))
		return false;
	if (now >= r->retry_at)
		r->retry_at = now + outbox_pace_backoff(p, ++r->waits);
	if (p->breaker != OUTBOX_BREAKER_CLOSED || p->refusals_paid-- <= 0)
		return false;
	p->failures = (OutboxFailures){0};
	return true;
}

bool
outbox_pace_takes(OutboxPace *p, const char *topic)
{
	OutboxRefused *r = find_topic(p, topic);
	bool		   was_refused = r != NULL && r->retry_at != 0;

	if (r == NULL)
		return false;
	*r = (OutboxRefused){0};
	for (int i = 0; i < OUTBOX_REFUSED_TOPICS; i++)
		if (p->refused[i].topic[0])
			return was_refused;
	outbox_pace_free(p);
	return was_refused;
}

OutboxRefused *
outbox_pace_refused(const OutboxPace *p, const char *topic)
{
	for (int i = 0; p->refused != NULL && i < OUTBOX_REFUSED_TOPICS; i++)
		if (p->refused[i].retry_at != 0 &&
			(topic == NULL || strcmp(p->refused[i].topic, topic) == 0))
			return &p->refused[i];
	return NULL;
}

bool
outbox_pace_holds(const OutboxPace *p)
{
	return p->breaker == OUTBOX_BREAKER_CLOSED && p->refusals_paid > 0;
}

void
outbox_pace_free(OutboxPace *p)
{
	if (p->refused)
		pfree(p->refused);
	p->refused = NULL;
}

/* The first probe goes out at once, and a probe that fails waits as long as before. */
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
	if (p->breaker == OUTBOX_BREAKER_OPEN)
	{
		/*
		 * Only a probe counts, not a request that was in flight when the breaker opened.
		 */
		if (probe)
			wait_for_probe(p, now);
		return false;
	}

	if (!count_failure(&p->failures, seq))
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
