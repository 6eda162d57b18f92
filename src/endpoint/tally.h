/*
 * tally.h
 *	  What is counted of an endpoint's deliveries: rates and latencies.
 */
#ifndef OUTBOX_TALLY_H
#define OUTBOX_TALLY_H

#include "endpoint/endpoint.h"

/*
 * For an endpoint that this worker has not served so far: takes over the deliveries
 * of the last minute that its former worker published.
 */
extern void outbox_tally_resume(OutboxEndpoint *ep);

extern void outbox_tally_success(OutboxEndpoint *ep, TimestampTz now);

/* Notes a latency: 'usec' µs from emit to success. */
extern void outbox_tally_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now);

#endif /* OUTBOX_TALLY_H */
