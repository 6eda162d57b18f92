#ifndef OUTBOX_TICK_H
#define OUTBOX_TICK_H

#include "base/outbox.h"

#include "access/transam.h"
#include "access/xlogdefs.h"

/*
 * A moment of the log: a snapshot, and the sequence's value before and after it was
 * taken.  The events of a tick are seen by its snapshot, and not by the previous one.
 * Reference-counted, in a memory context of its own.
 */
typedef struct OutboxTick
{
	int			refs;
	int64		number; /* in the order of the snapshots */
	TimestampTz taken_at;

	/*
	 * Sequence's value just before the snapshot: a transaction with xid >= xmax draws
	 * higher numbers.
	 */
	int64 seq_low;
	/* Value just after it: nothing that the snapshot sees has a higher number. */
	int64 seq_high;
	/* Everything that the snapshot sees is in the WAL before this. */
	XLogRecPtr lsn;
	uint64	   xmin;
	uint64	   xmax;
	int		   nxip;
	uint64	   xip[FLEXIBLE_ARRAY_MEMBER]; /* sorted */
} OutboxTick;

/*
 * How far an endpoint or replay has read: everything of 'read'.  If there is a
 * 'reading', also everything of that up to 'last_seq'.
 */
typedef struct OutboxCursor
{
	OutboxTick *read;
	OutboxTick *reading; /* NULL: between two ticks */
	int64		last_seq;
} OutboxCursor;

/* Called when a worker starts, with the oid of outbox.events_seq. */
extern void outbox_tick_init(Oid sequence);

/*
 * Takes a tick now.  Must be called in a READ COMMITTED transaction, with the log's
 * tables locked.  Throws if the sequence was set back.
 */
extern OutboxTick *outbox_tick_take(void);

/* The same for a user's transaction, which has its xid already and stores the tick. */
extern OutboxTick *outbox_tick_in_session(Oid sequence);

/* A copy of 'now' that also sees the present transaction. */
extern OutboxTick *outbox_tick_before_own_commit(const OutboxTick *now);

/* Makes a tick of a stored row.  'snapshot' is as pg_snapshot prints it. */
extern OutboxTick *outbox_tick_make(int64 number, TimestampTz taken_at, int64 seq_low,
									int64 seq_high, const char *snapshot);

/* The snapshot as pg_snapshot prints it, palloc'd. */
extern char *outbox_tick_snapshot(const OutboxTick *tick);

/* Add and drop a reference.  NULL is allowed.  The last one frees the tick. */
extern OutboxTick *outbox_tick_ref(OutboxTick *tick);
extern void		   outbox_tick_unref(OutboxTick *tick);

/* True if the tick's snapshot sees the transaction. */
extern bool outbox_tick_sees(const OutboxTick *tick, uint64 xid);

/* True if 'tick' sees all that 'former' sees. */
extern bool outbox_tick_follows(const OutboxTick *tick, const OutboxTick *former);

/* As outbox_tick_follows() says, but found by the numbers of ticks that have one. */
extern bool outbox_tick_reaches(const OutboxTick *tick, const OutboxTick *former);

/*
 * True if two ticks see the same transactions.  The second is true if they see the same
 * events, as far as that can be told without reading the log.
 */
extern bool outbox_tick_same(const OutboxTick *a, const OutboxTick *b);
extern bool outbox_tick_same_events(const OutboxTick *a, const OutboxTick *b);

/* True if 'tick' sees a transaction that had begun at 'former', which does not see it. */
extern bool outbox_tick_has_late(const OutboxTick *tick, const OutboxTick *former);

/* Cursors hold references to their ticks. */
extern void outbox_cursor_set(OutboxCursor *to, OutboxTick *read, OutboxTick *reading,
							  int64 last_seq);
extern void outbox_cursor_copy(OutboxCursor *to, const OutboxCursor *from);
extern void outbox_cursor_clear(OutboxCursor *c);

/* True if a reader at this cursor has passed the event. */
extern bool outbox_cursor_covers(const OutboxCursor *c, uint64 xid, int64 seq);

/*
 * Readers at several places that read one page.  _may_read_to is true if a reader at the
 * cursor may read up to 'tick'.  _start returns behind which row it then is.  _has_place_in
 * is true if pages that are read from 'leader' on have all the rows that it lacks up to
 * where they end.  _begin lets it read up to 'tick', if it does not yet.  _follow: it has come
 * as far as 'page', where these pages end.  _near returns about where in the log it is.
 */
extern bool	 outbox_cursor_may_read_to(const OutboxCursor *c, const OutboxTick *tick);
extern int64 outbox_cursor_start(const OutboxCursor *c, const OutboxTick *tick);
extern bool	 outbox_cursor_has_place_in(const OutboxCursor *c, const OutboxCursor *leader,
										const OutboxTick *tick);
extern void	 outbox_cursor_begin(OutboxCursor *c, OutboxTick *tick);
extern void	 outbox_cursor_follow(OutboxCursor *c, const OutboxCursor *page);
extern int64 outbox_cursor_near(const OutboxCursor *c);

#endif /* OUTBOX_TICK_H */
