/*
 * own_events.h
 *	  Events of our own: outbox.dead, outbox.disabled, outbox.recovered.
 */
#ifndef OUTBOX_OWN_EVENTS_H
#define OUTBOX_OWN_EVENTS_H

#include "endpoint/endpoint.h"

/*
 * In a settle, while 'settling' still holds what has died: makes the notices of
 * one endpoint.  'disabled': this settle has written that the endpoint is.
 */
extern void outbox_own_events_write(OutboxEndpoint *ep, bool disabled);

/* At its end, in its transaction: writes all notices, or keeps them for later. */
extern void outbox_own_events_flush(void);
extern void outbox_own_events_committed(void);
extern void outbox_own_events_rolled_back(void);

/* True if there are some, and they may be tried. */
extern bool outbox_own_events_waits(void);

#endif /* OUTBOX_OWN_EVENTS_H */
