#ifndef OUTBOX_OWN_EVENTS_H
#define OUTBOX_OWN_EVENTS_H

#include "endpoint/endpoint.h"

/*
 * In a settle, while 'settling' still has the dead deliveries: makes the notices of
 * one endpoint, in memory.  'disabled' is true if this settle has stored that the
 * endpoint is disabled.
 */
extern void outbox_own_events_write(OutboxEndpoint *ep, bool disabled);

/*
 * At the end of a settle's transaction, _flush writes all notices, or leaves them
 * for later.  _end_settle is called when that transaction has ended.
 */
extern void outbox_own_events_flush(void);
extern void outbox_own_events_end_settle(bool committed);

/* True if there are notices, and writing them is not on hold. */
extern bool outbox_own_events_waits(void);

#endif /* OUTBOX_OWN_EVENTS_H */
