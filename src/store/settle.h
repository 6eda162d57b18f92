/*
 * settle.h
 *	  Writes outcomes: attempts, parked deliveries, positions, together.
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "endpoint/endpoint.h"

extern void outbox_settle_init(OutboxDatabase *db, int64 last_shared_tick);

/*
 * Writes everything that is due for these endpoints, in one transaction; if that
 * fails, in one for each, and those that fail are put on hold.
 * 'head' is how far the log has been read; 'final' writes the shared position
 * as well.  False: a lock was not to be had; nothing was written, call again.
 */
extern bool outbox_settle(dlist_head *busy, const OutboxCursor *head, bool final);

/*
 * True, once, if an endpoint was stored that could not be stored before: what an
 * operator asked for waits for it.
 */
extern bool outbox_settle_was_released(void);

/* True if the shared position can be stored, and may move on. */
extern bool outbox_settle_may_share(dlist_head *busy);

/* True if it has something to be stored. */
extern bool outbox_settle_wants(const OutboxEndpoint *ep);

/*
 * Is the shared position behind the head?  Whoever has nothing to deliver stores
 * how far he has read all the same, or he would retain the log.
 */
extern bool outbox_settle_wants_head(const OutboxCursor *head, TimestampTz now);

#endif /* OUTBOX_SETTLE_H */
