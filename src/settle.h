/*
 * settle.h
 *	  Writes outcomes: attempts, parked deliveries, positions.
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "endpoint.h"

extern void outbox_settle_init(OutboxDatabase *db, int64 last_shared_tick);

/*
 * Remembers an attempt that ended, for outbox.attempts.  'error': why it failed,
 * NULL: it did not.  'keep_body': with what was kept of the answer to a failure.
 */
extern void outbox_settle_attempt(const OutboxDelivery *d,
								  const OutboxOutcome *outcome,
								  const char *error, bool keep_body);
extern int	outbox_settle_attempts(void);	/* how many wait to be written */

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

/*
 * Positions fill up: write what counts to the other table, truncate this one.
 * For the worker that serves the database.
 */
extern bool outbox_settle_wants_compaction(TimestampTz now);
extern bool outbox_settle_compact(void);

#endif							/* OUTBOX_SETTLE_H */
