/*
 * settle.h
 *	  Writes outcomes: attempts, parked deliveries, positions, together.
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "endpoint.h"

extern void outbox_settle_init(OutboxDatabase *db, int64 last_shared_tick);

/*
 * Writes everything that is due for these endpoints, in one transaction.
 * 'head' is how far the log has been read; 'final' writes the shared position
 * as well.  False: a lock was not to be had; nothing was written, call again.
 */
extern bool outbox_settle(dlist_head *busy, const OutboxCursor *head, bool final);

/*
 * Is the shared position behind the head?  Whoever has nothing to deliver stores
 * how far he has read all the same, or he would retain the log.
 */
extern bool outbox_settle_wants_head(const OutboxCursor *head, TimestampTz now);

#endif							/* OUTBOX_SETTLE_H */
