#ifndef OUTBOX_AHEAD_H
#define OUTBOX_AHEAD_H

#include "log/tick.h"

/*
 * To be called while the head is in a tick, between two pages.  If that takes long, looks
 * for events that were committed since then, and lets their endpoints read by themselves.
 */
extern void outbox_ahead_look(void);

/* The newest tick that an endpoint with a tenant may read, behind the head's.  NULL: none. */
extern OutboxTick *outbox_ahead_tick(void);

/*
 * The head has read its tick, or begins one: endpoints that wait for it are read for
 * again.
 */
extern void outbox_ahead_end(void);

#endif /* OUTBOX_AHEAD_H */
