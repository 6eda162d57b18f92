/*
 * pace.h
 *	  How fast an endpoint is sent to: slots, rate, backoff, breaker.
 */
#ifndef OUTBOX_PACE_H
#define OUTBOX_PACE_H

#include "endpoint/endpoint.h"

/* µs to wait after the given attempt (from 1), jittered. */
extern int64 outbox_pace_backoff(OutboxEndpoint *ep, int attempt);

/* May one request more be in flight? */
extern bool outbox_pace_has_slot(const OutboxEndpoint *ep);

/* When rate_limit lets it send one more: now, or later. */
extern TimestampTz outbox_pace_token_at(OutboxEndpoint *ep, TimestampTz now);

/* After a slow-down slots double, at most once a second. */
extern void outbox_pace_ramp_up(OutboxEndpoint *ep, TimestampTz now);

/* What an outcome means for the breaker. */
extern void outbox_pace_success(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_pace_failure(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now);

/* Answers that speak for the whole endpoint, not for one event. */
extern void outbox_pace_slow_down(OutboxEndpoint *ep, const OutboxOutcome *o,
								  TimestampTz now);

#endif							/* OUTBOX_PACE_H */
