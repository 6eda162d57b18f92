/*
 * pace.h
 *	  How fast requests are sent to an endpoint: slots, rate, backoff, breaker, topics that
 *	  are refused.
 *
 * It uses only numbers and times, so it is tested without a server.
 */
#ifndef OUTBOX_PACE_H
#define OUTBOX_PACE_H

#include "base/outbox.h"

typedef enum OutboxBreaker
{
	OUTBOX_BREAKER_CLOSED,
	OUTBOX_BREAKER_OPEN, /* nothing is sent until retry_at, then one probe at a time */
} OutboxBreaker;

#define OUTBOX_BREAKER_FAILURES 20
#define OUTBOX_BREAKER_EVENTS 3

/* Failures in a row.  So many of so many events say that it is not the event. */
typedef struct OutboxFailures
{
	int	  n;
	int	  events; /* different ones in 'seq', at most OUTBOX_BREAKER_EVENTS */
	int64 seq[OUTBOX_BREAKER_EVENTS];
} OutboxFailures;

/*
 * Topics whose events the receiver refuses.  So many are judged by themselves.  A success
 * pays for so many of their events that are refused, or get a row without a request.
 */
#define OUTBOX_REFUSED_TOPICS 4
#define OUTBOX_REFUSALS_PAID 1000

typedef struct OutboxRefused
{
	char		   topic[OUTBOX_MAX_TOPIC + 1]; /* "": none */
	OutboxFailures refusals;
	int			   waits;	   /* for a probe, in a row: exponent of its backoff */
	TimestampTz	   retry_at;   /* time of the next probe.  0: it is not refused yet */
	TimestampTz	   refused_at; /* when it last was */
} OutboxRefused;

/* The limits of the endpoint's settings. */
typedef struct OutboxPaceLimits
{
	int	   max_in_flight;
	double rate_limit;	 /* per second (0: none) */
	int64  backoff_base; /* µs */
	int64  backoff_max;	 /* µs */
} OutboxPaceLimits;

typedef struct OutboxPace
{
	OutboxPaceLimits limits;
	OutboxFailures	 failures;
	OutboxBreaker	 breaker;
	int				 refusals_paid;
	int				 openings; /* waits for a probe in a row: exponent of its backoff */
	int				 slots;	   /* requests in flight at most, which ramps up */
	TimestampTz		 retry_at; /* time of the next probe, or, while closed, of the next
								* request */
	TimestampTz		 ramp_at;  /* when slots may double again */
	double			 tokens;   /* of rate_limit */
	TimestampTz		 tokens_at;
	OutboxRefused	*refused; /* OUTBOX_REFUSED_TOPICS of them (NULL: none) */
} OutboxPace;

/*
 * Returns the µs to wait after the given attempt (from 1).  'base' and 'max' are
 * µs, 'random' is in [0, 1).
 */
extern int64 outbox_backoff(int attempt, int64 base, int64 max, double random);

/* The same with the endpoint's limits and a random number. */
extern int64 outbox_pace_backoff(const OutboxPace *p, int attempt);

extern void outbox_pace_set_limits(OutboxPace *p, const OutboxPaceLimits *limits);

/*
 * The first is true if one more request may be in flight, the second if it may be
 * sent now.
 */
extern bool outbox_pace_has_slot(const OutboxPace *p, int in_flight);
extern bool outbox_pace_allows(OutboxPace *p, int in_flight, TimestampTz now);

/*
 * Returns when rate_limit allows one more request: 'now', or a later time.
 * _take_token notes that it is sent.
 */
extern TimestampTz outbox_pace_token_at(OutboxPace *p, TimestampTz now);
extern void		   outbox_pace_take_token(OutboxPace *p);
extern void outbox_pace_return_token(OutboxPace *p); /* it was not sent after all */

/*
 * After a slow-down, or when the breaker has closed, doubles the slots at most once
 * a second.
 */
extern void outbox_pace_ramp_up(OutboxPace *p, TimestampTz now);

/* The breaker was open, after this many failed probes, when a worker last stored it. */
extern void outbox_pace_reopen(OutboxPace *p, int openings);

/* An operator resumes the endpoint: it need not wait any longer. */
extern void outbox_pace_resume(OutboxPace *p);

/* Nothing is sent before that time. */
extern void outbox_pace_wait(OutboxPace *p, TimestampTz until);

/* A request succeeded.  True: this has closed the breaker. */
extern bool outbox_pace_success(OutboxPace *p, TimestampTz now);

/*
 * The receiver refused the event 'seq' of this topic.  True: that is no failure of the
 * endpoint, because so many of them were refused in a row, and it takes others.
 */
extern bool outbox_pace_refusal(OutboxPace *p, const char *topic, int64 seq,
								TimestampTz now);

/* The receiver took an event of this topic.  True: it was refused until now. */
extern bool outbox_pace_takes(OutboxPace *p, const char *topic);

/* Returns the topic if it is refused, else NULL.  NULL: any that is. */
extern OutboxRefused *outbox_pace_refused(const OutboxPace *p, const char *topic);

/* True if a topic that is refused is held: only probes of the topic are sent. */
extern bool outbox_pace_holds(const OutboxPace *p);

extern void outbox_pace_free(OutboxPace *p);

/*
 * A request with the delivery 'seq' failed.  'probe': true if it was sent while the
 * breaker was open.  True: this has opened the breaker.
 */
extern bool outbox_pace_failure(OutboxPace *p, int64 seq, bool probe, TimestampTz now);

/*
 * The receiver has too much to do: halves the slots, and sends nothing for
 * 'retry_after' seconds, at most backoff_max.  -1: the answer names no time.
 */
extern void outbox_pace_slow_down(OutboxPace *p, int64 retry_after, TimestampTz now);

#endif /* OUTBOX_PACE_H */
