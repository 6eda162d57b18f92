#ifndef OUTBOX_RESERVE_H
#define OUTBOX_RESERVE_H

#include "base/outbox.h"

/* Pages of the reserve that are left for more urgent needs, by the need. */
typedef enum OutboxReserveNeed
{
	OUTBOX_RESERVE_TO_EMPTY = 0,	/* to empty a table, which gives back more */
	OUTBOX_RESERVE_TO_CHANGE = 128, /* an operator's change, after which a table can be */
	OUTBOX_RESERVE_TO_WRITE = 192	/* rows of the worker */
} OutboxReserveNeed;

/*
 * Gives up a slice of the reserve if the disk is full.  Returns true if it gave up
 * something.  Needs a transaction that writes.
 */
extern bool outbox_reserve_give_up(OutboxReserveNeed need);

/* The same for rows, in a transaction of its own: sets '*given', a bool.  Throws if it cannot begin. */
extern void outbox_reserve_give_up_alone(void *given);

/* Fills the reserve again if there is space, in a transaction of its own. */
extern void outbox_reserve_fill(void *unused);

#endif /* OUTBOX_RESERVE_H */
