/*
 * watch.h
 *	  What outbox.stats shows of an endpoint.
 */
#ifndef OUTBOX_WATCH_H
#define OUTBOX_WATCH_H

#include "endpoint.h"

/*
 * One that this worker has not served so far: what it did in the last minute is
 * what its worker before published.
 */
extern void outbox_watch_resume(OutboxEndpoint *ep);

extern void outbox_watch_success(OutboxEndpoint *ep, TimestampTz now);

/* µs from emit to 2xx */
extern void outbox_watch_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now);

#endif							/* OUTBOX_WATCH_H */
