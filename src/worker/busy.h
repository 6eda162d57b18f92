/*
 * busy.h
 *	  Which endpoints have something to do now, and when the others will.
 */
#ifndef OUTBOX_BUSY_H
#define OUTBOX_BUSY_H

#include "endpoint/endpoint.h"

/* Adds the endpoint to the list of those that may have something to do. */
extern void outbox_busy_add(OutboxEndpoint *ep);

/*
 * Takes the endpoint off the list until it is added again, or until 'until'.
 * DT_NOEND: nothing happens by itself.
 */
extern void outbox_busy_rest(OutboxEndpoint *ep, TimestampTz until);

/* The endpoint is about to be freed. */
extern void outbox_busy_forget(OutboxEndpoint *ep);

/* Adds the endpoints whose time has come. */
extern void outbox_busy_wake(TimestampTz now);

/* Returns when the next one is to be added.  DT_NOEND: none waits for a time. */
extern TimestampTz outbox_busy_next_time(void);

#endif /* OUTBOX_BUSY_H */
