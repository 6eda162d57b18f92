/*
 * slots.h
 *	  How the requests that a worker may have in flight are shared by its endpoints.
 */
#ifndef OUTBOX_SLOTS_H
#define OUTBOX_SLOTS_H

#include "utils/timestamp.h"

/*
 * Fills free slots.  Each endpoint gets one, as soon as a round has time for it.  While
 * endpoints wait for more, they get up to an equal share in the order in which they wait.
 * What is left then goes to them in the same order.
 */
extern void outbox_slots_fill(TimestampTz now);

#endif /* OUTBOX_SLOTS_H */
