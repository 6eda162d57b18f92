/*
 * dispatch.h
 *	  Starts an endpoint's deliveries with its transport, and takes their outcomes.
 */
#ifndef OUTBOX_DISPATCH_H
#define OUTBOX_DISPATCH_H

#include "endpoint/endpoint.h"

/* Called for the endpoint each time one of its requests has ended. */
typedef void (*OutboxEnded)(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_dispatch_init(OutboxEnded ended);

/* Unsettled deliveries after which a settle does not wait for its interval. */
#define OUTBOX_SETTLE_AFTER 1000

/*
 * A round of the loop begins.  In one round requests are started for a bounded time.
 * When that is over, endpoints that have more to send wait for their turn in the next.
 */
extern void outbox_dispatch_new_round(void);
extern bool outbox_dispatch_round_is_over(void);

/*
 * Fills the endpoint's free slots.  It stops at 'most' requests in flight, when they
 * take the part of the worker's memory that 'most' is of
 * outbox.worker_max_in_flight, or when the round is over.  One request is allowed in
 * any case, as soon as a round has time for it.  _offer does the same in the order in
 * which endpoints wait for that.
 */
extern void outbox_dispatch_fill(OutboxEndpoint *ep, TimestampTz now, int most);
extern void outbox_dispatch_offer(OutboxEndpoint *ep, TimestampTz now, int most);

/*
 * What was started goes out now, because the worker is about to do something else.  It is
 * done before each large payload, too.
 */
extern void outbox_dispatch_flush(void);

/* False: nothing at all may be sent now. */
extern bool outbox_dispatch_may_fill(void);

/* The endpoint no longer waits for the limits of its tenant. */
extern void outbox_dispatch_leave_tenant(OutboxEndpoint *ep);

/*
 * Cancels the endpoint's requests that were started before 'before'.  Their
 * deliveries are put back to where they were.
 */
extern void outbox_dispatch_cancel(OutboxEndpoint *ep, TimestampTz before);

/*
 * Returns when the endpoint will have something to send by itself.  DT_NOEND:
 * never.
 */
extern TimestampTz outbox_dispatch_next_time(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_DISPATCH_H */
