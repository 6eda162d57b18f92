/*
 * dispatch.h
 *	  Between an endpoint and its transport: starts deliveries, takes outcomes.
 */
#ifndef OUTBOX_DISPATCH_H
#define OUTBOX_DISPATCH_H

#include "endpoint/endpoint.h"

/* All transports that there are. */
#define OUTBOX_TRANSPORTS 1
extern const OutboxTransport *const outbox_transports[OUTBOX_TRANSPORTS];

/* Called for each endpoint in which a delivery ended. */
typedef void (*OutboxEnded)(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_dispatch_init(OutboxEnded ended);

/* Deliveries after which a settle does not wait for its interval. */
#define OUTBOX_SETTLE_AFTER 500

/*
 * Fills the endpoint's free slots, up to 'most' requests in flight, and that part
 * of the worker's memory which 'most' is of outbox.worker_max_in_flight.
 */
extern void outbox_dispatch_fill(OutboxEndpoint *ep, TimestampTz now, int most);

/* Takes requests back that are in flight; started before 'before'. */
extern void outbox_dispatch_cancel(OutboxEndpoint *ep, TimestampTz before);

/* When the endpoint has something to send by itself; DT_NOEND: never. */
extern TimestampTz outbox_dispatch_next_time(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_DISPATCH_H */
