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
 * Where nothing but failures has come for outbox.failing_after, and something still
 * waits, makes the next settle emit outbox.failing.  Once for each period of failing,
 * which ends with a success, or when the endpoint is paused or disabled.
 */
extern void outbox_status_check_failing(OutboxEndpoint *ep, TimestampTz now);

/*
 * The receiver wants no event any more: disables the endpoint.  The next settle
 * stores that.
 */
extern void outbox_status_disable(OutboxEndpoint *ep, const char *reason,
								  TimestampTz now);

#endif /* OUTBOX_STATUS_H */
