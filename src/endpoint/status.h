/*
 * status.h
 *	  Whether requests may be sent to an endpoint, and why not.
 */
#ifndef OUTBOX_STATUS_H
#define OUTBOX_STATUS_H

#include "endpoint/endpoint.h"

/*
 * True if it is paused, disabled, held or dropped: nothing is sent to it or read
 * for it.
 */
extern bool outbox_status_is_off(const OutboxEndpoint *ep);

/* True if a request may be sent to it now. */
extern bool outbox_status_may_send(OutboxEndpoint *ep, TimestampTz now);

/* A request succeeded, or failed.  'd' is one of its deliveries. */
extern void outbox_status_success(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_status_failure(OutboxEndpoint *ep, const OutboxDelivery *d,
								  TimestampTz now);

/*
 * The receiver wants no event any more: disables the endpoint.  The next settle
 * stores that.
 */
extern void outbox_status_disable(OutboxEndpoint *ep, const char *reason,
								  TimestampTz now);

#endif /* OUTBOX_STATUS_H */
