/*
 * publish.h
 *	  What outbox.stats learns, and when.
 */
#ifndef OUTBOX_PUBLISH_H
#define OUTBOX_PUBLISH_H

#include "endpoint/endpoint.h"

/* Nothing is left to do for it, not even to be written. */
extern bool outbox_is_quiet(OutboxEndpoint *ep);

/* To be called with each round of the loop: it limits its own rate. */
extern void outbox_publish(TimestampTz now);
extern void outbox_publish_one(OutboxEndpoint *ep, TimestampTz now);

/* When what the last round left out is to be told; DT_NOEND: nothing was. */
extern TimestampTz outbox_publish_next_time(void);

#endif /* OUTBOX_PUBLISH_H */
