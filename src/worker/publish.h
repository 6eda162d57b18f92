#ifndef OUTBOX_PUBLISH_H
#define OUTBOX_PUBLISH_H

#include "endpoint/endpoint.h"

/* True if nothing is left to do for the endpoint, not even to write an outcome. */
extern bool outbox_is_quiet(OutboxEndpoint *ep);

/*
 * The first is to be called in each round of the loop, and limits its own rate.
 * The second publishes one endpoint at once.
 */
extern void outbox_publish(TimestampTz now);
extern void outbox_publish_one(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_PUBLISH_H */
