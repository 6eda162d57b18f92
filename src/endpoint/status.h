/*
 * status.h
 *	  Whether an endpoint is sent to, and why not.
 */
#ifndef OUTBOX_STATUS_H
#define OUTBOX_STATUS_H

#include "endpoint/endpoint.h"

/* Paused, disabled, held or dropped: nothing is sent to it, nor read for it. */
extern bool outbox_status_is_off(const OutboxEndpoint *ep);

/* May a request be sent to it now? */
extern bool outbox_status_may_send(OutboxEndpoint *ep, TimestampTz now);

/* A request was answered well, or failed; 'd' is one of its deliveries. */
extern void outbox_status_success(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_status_failure(OutboxEndpoint *ep, const OutboxDelivery *d,
								  TimestampTz now);

/* The receiver wants nothing any more. */
extern void outbox_status_disable(OutboxEndpoint *ep, const char *reason,
								  TimestampTz now);

#endif /* OUTBOX_STATUS_H */
