/*
 * pace.h
 *	  How fast an endpoint is sent to: slots, rate, backoff, breaker.
 *
 * Knows nothing but numbers and times, and is tested without a server.
 */
#ifndef OUTBOX_PACE_H
#define OUTBOX_PACE_H

#include "base/outbox.h"

typedef enum OutboxBreaker
{
	OUTBOX_BREAKER_CLOSED,
	OUTBOX_BREAKER_OPEN, /* nothing is sent until retry_at, then one probe
								 * at a time */
} OutboxBreaker;

#define OUTBOX_BREAKER_FAILURES 20
#define OUTBOX_BREAKER_EVENTS 3

/* What the settings of the endpoint allow. */
typedef struct OutboxPaceLimits
{
	int	   max_in_flight;
	double rate_limit;	 /* per second; 0: none */
	int64  backoff_base; /* µs */
	int64  backoff_max;	 /* µs */
} OutboxPaceLimits;

typedef struct OutboxPace
{
	OutboxPaceLimits limits;
	OutboxBreaker	 breaker;
	int				 failures;		 /* in a row */
	int				 failing_events; /* how many different ones, up to the limit */
	int64			 failing_seq[OUTBOX_BREAKER_EVENTS];
	int				 openings; /* in a row: exponent of the probe's backoff */
	TimestampTz		 retry_at; /* open: next probe; closed: not before */
	int				 slots;	   /* at most this many in flight, ramps up */
	TimestampTz		 ramp_at;  /* when slots may double */
	double			 tokens;   /* of rate_limit */
	TimestampTz		 tokens_at;
} OutboxPace;

/*
 * µs to wait after the given attempt (from 1).  'random' is in [0, 1).
 */
extern int64 outbox_backoff(int attempt, int64 base, int64 max, double random);

/* The same with the endpoint's limits, and a random number. */
extern int64 outbox_pace_backoff(const OutboxPace *p, int attempt);

extern void outbox_pace_set_limits(OutboxPace *p, const OutboxPaceLimits *limits);

/* May one request more be in flight?  May it be sent now? */
extern bool outbox_pace_has_slot(const OutboxPace *p, int in_flight);
extern bool outbox_pace_allows(OutboxPace *p, int in_flight, TimestampTz now);

/* When rate_limit lets it send one more: now, or later.  One is sent. */
extern TimestampTz outbox_pace_token_at(OutboxPace *p, TimestampTz now);
extern void		   outbox_pace_take_token(OutboxPace *p);
extern void		   outbox_pace_return_token(OutboxPace *p); /* it was not, after all */

/* After a slow-down slots double, at most once a second. */
extern void outbox_pace_ramp_up(OutboxPace *p, TimestampTz now);

/* An operator resumes the endpoint: no wait from before counts. */
extern void outbox_pace_resume(OutboxPace *p);

/* A request was answered well.  True: this has closed the breaker. */
extern bool outbox_pace_success(OutboxPace *p, TimestampTz now);

/*
 * A request failed, with a delivery of this number.  'probe': it was sent while
 * the breaker was open.  True: this has opened the breaker.
 */
extern bool outbox_pace_failure(OutboxPace *p, int64 seq, bool probe, TimestampTz now);

/*
 * An answer that speaks for the whole endpoint.  'retry_after' is in seconds; -1:
 * the answer has none.
 */
extern void outbox_pace_slow_down(OutboxPace *p, int64 retry_after, TimestampTz now);

#endif /* OUTBOX_PACE_H */
