#ifndef OUTBOX_DISPATCH_H
#define OUTBOX_DISPATCH_H

#include "endpoint/endpoint.h"

/* Called for the endpoint each time one of its requests has ended. */
typedef void (*OutboxEnded)(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_dispatch_init(OutboxEnded ended);

/*
 * A round of the loop begins.  In one round requests are started for a bounded time.
 * When that is over, endpoints that have more to send wait for their turn in the next.
 */
extern void outbox_dispatch_new_round(void);

/* Fills free slots, in the order of slots.h. */
extern void outbox_dispatch_fill_all(TimestampTz now);

/*
 * Requests that were started go out now, because the worker is about to do something
 * else.  It is done before each large payload, too.
 */
extern void outbox_dispatch_flush(void);

/*
 * Cancels the endpoint's requests that were started before 'before'.  Their
 * deliveries are put back to where they were.  If the endpoint was dropped, nothing sends
 * them again, and the requests count as failed.
 */
extern void outbox_dispatch_cancel(OutboxEndpoint *ep, TimestampTz before);

/*
 * Returns when the endpoint will have something to send by itself.  DT_NOEND:
 * never.
 */
extern TimestampTz outbox_dispatch_next_time(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_DISPATCH_H */
