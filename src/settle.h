/*
 * settle.h
 *	  Writes outcomes: attempts, parked deliveries, positions.
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "endpoint.h"

extern void outbox_settle_init(int64 last_position, int positions_piece,
							   int64 positions_rows, int64 last_shared_tick);

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

/* Positions fill up: write them all to the other table, truncate this one. */
extern bool outbox_settle_wants_compaction(TimestampTz now);
extern bool outbox_settle_compact(OutboxEndpoint **endpoints, int n,
								  const OutboxCursor *head);

#endif							/* OUTBOX_SETTLE_H */
