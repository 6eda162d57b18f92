/*
 * endpoint_stats.h
 *	  What outbox.stats shows of an endpoint.
 */
#ifndef OUTBOX_ENDPOINT_STATS_H
#define OUTBOX_ENDPOINT_STATS_H

#include "endpoint/endpoint.h"

/*
 * One that this worker has not served so far: what it did in the last minute is
 * what its worker before published.
 */
extern void outbox_watch_resume(OutboxEndpoint *ep);

extern void outbox_watch_success(OutboxEndpoint *ep, TimestampTz now);

/* µs from emit to 2xx */
extern void outbox_watch_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now);

#endif							/* OUTBOX_ENDPOINT_STATS_H */
