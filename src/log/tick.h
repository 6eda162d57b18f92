/*
 * tick.h
 *	  Ticks, the moments of the log, and cursors, places in it.
 */
#ifndef OUTBOX_TICK_H
#define OUTBOX_TICK_H

#include "base/outbox.h"

#include "access/transam.h"
#include "access/xlogdefs.h"

/*
 * A moment in the log: a snapshot, and how far the sequence was before and
 * after it was taken.  The events of a tick are those that its snapshot sees
 * and the previous one does not.  Reference-counted, in malloc-like memory of
 * the worker (a context of its own).
 */
typedef struct OutboxTick
{
	int			refs;
	int64		number; /* in the order of the snapshots */
	TimestampTz taken_at;
	int64		seq_low;  /* the sequence just before the snapshot: whoever
								 * gets an xid >= xmax draws a higher one */
	int64		seq_high; /* just after: nothing that the snapshot sees has
								 * a higher one */
	XLogRecPtr	lsn;	  /* all that the snapshot sees is in the WAL before
								 * here */
	uint64		xmin;
	uint64		xmax;
	int			nxip;
	uint64		xip[FLEXIBLE_ARRAY_MEMBER]; /* sorted */
} OutboxTick;

/*
 * How far somebody has read: everything of 'done'; and of 'under', when there
 * is one, everything up to 'last_seq'.
 */
typedef struct OutboxCursor
{
	OutboxTick *done;
	OutboxTick *under; /* NULL: between two ticks */
	int64		last_seq;
} OutboxCursor;

/*
 * Ticks.  outbox_tick_take() looks at the log now: to be called in a READ
 * COMMITTED transaction, with the log's tables locked.  outbox_tick_in_session() does
 * so for a transaction of a user, which must have its xid already and stores it;
 * outbox_tick_before_own_commit() is the moment at which only that one has committed since.
 */
extern void		   outbox_tick_init(Oid sequence);
extern OutboxTick *outbox_tick_take(void);
extern OutboxTick *outbox_tick_in_session(Oid sequence);
extern OutboxTick *outbox_tick_before_own_commit(const OutboxTick *now);
extern void		   outbox_tick_sequence_went_back(void); /* an error that says so */
extern OutboxTick *outbox_tick_make(int64 number, TimestampTz taken_at, int64 seq_low,
									int64 seq_high, const char *snapshot);
extern char		  *outbox_tick_snapshot(const OutboxTick *tick); /* as text */
extern OutboxTick *outbox_tick_ref(OutboxTick *tick);
extern void		   outbox_tick_unref(OutboxTick *tick);
extern bool		   outbox_tick_sees(const OutboxTick *tick, uint64 xid);

/* Does 'tick' see all that 'former' sees? */
extern bool outbox_tick_follows(const OutboxTick *tick, const OutboxTick *former);

/* True when two ticks hold the same events. */
extern bool outbox_tick_same(const OutboxTick *a, const OutboxTick *b);

/* Cursors hold references to their ticks. */
extern void outbox_cursor_set(OutboxCursor *to, OutboxTick *done, OutboxTick *under,
							  int64 last_seq);
extern void outbox_cursor_copy(OutboxCursor *to, const OutboxCursor *from);
extern void outbox_cursor_clear(OutboxCursor *c);
extern bool outbox_cursor_covers(const OutboxCursor *c, uint64 xid, int64 seq);

#endif /* OUTBOX_TICK_H */
