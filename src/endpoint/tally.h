/*
 * tally.h
 *	  What an endpoint counts of its deliveries: rates and latencies.
 */
#ifndef OUTBOX_TALLY_H
#define OUTBOX_TALLY_H

#include "endpoint/endpoint.h"

/*
 * One that this worker has not served so far: what it did in the last minute is
 * what its worker before published.
 */
extern void outbox_tally_resume(OutboxEndpoint *ep);

extern void outbox_tally_success(OutboxEndpoint *ep, TimestampTz now);

/* µs from emit to 2xx */
extern void outbox_tally_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now);

#endif /* OUTBOX_TALLY_H */
