/*
 * publish.h
 *	  What outbox.stats learns, and when.
 */
#ifndef OUTBOX_PUBLISH_H
#define OUTBOX_PUBLISH_H

#include "endpoint.h"

/* Nothing is left to do for it, not even to be written. */
extern bool outbox_is_quiet(OutboxEndpoint *ep);

/* To be called with each round of the loop: it limits its own rate. */
extern void outbox_publish(TimestampTz now);

#endif							/* OUTBOX_PUBLISH_H */
