/*
 * reserve.h
 *	  Space that outbox gives up when the disk is full.
 */
#ifndef OUTBOX_RESERVE_H
#define OUTBOX_RESERVE_H

#include "base/outbox.h"

/*
 * Gives up a slice of the reserve if the disk is full.  The last half is only for a
 * transaction that empties a table ('empties').  Returns true if it gave up something.
 * Needs a transaction that writes.
 */
extern bool outbox_reserve_give_up(bool empties);

/* The same in a transaction of its own: sets '*given', a bool.  Throws if it cannot begin. */
extern void outbox_reserve_give_up_alone(void *given);

/* Fills the reserve again if there is space, in a transaction of its own. */
extern void outbox_reserve_fill(void *unused);

#endif /* OUTBOX_RESERVE_H */
