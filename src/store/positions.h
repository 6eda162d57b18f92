/*
 * positions.h
 *	  Stored positions: how far each endpoint has come.
 *
 * All of these run inside a transaction of transaction.h, the compaction excepted.
 */
#ifndef OUTBOX_POSITIONS_H
#define OUTBOX_POSITIONS_H

#include "endpoint/endpoint.h"

/* A stored position. */
typedef struct OutboxPosition
{
	int64		 generation;
	OutboxCursor cursor;
	int			 npending;
	int64		*pending;
	int64		 delivered;
	int64		 failed_attempts;
} OutboxPosition;

extern void outbox_positions_init(OutboxDatabase *db);

/*
 * The newest position of one endpoint, its own or the one that it shares.
 * False: none is stored.  The caller clears the cursor.
 */
extern bool outbox_position_read(int32 endpoint_id, OutboxPosition *position);

/* The shared position that was written last.  False: there is none. */
extern bool outbox_position_newest_shared(OutboxCursor *cursor);

/* Events that were on their way when the position was written. */
extern void outbox_position_load_pending(OutboxEndpoint *ep, const int64 *seqs, int n);

/* Numbers that are given out go on from those that are in use. */
extern void outbox_positions_raise_numbers(OutboxDatabase *db);

/* Which of the two tables of positions is in use, and how full it is. */
extern void outbox_positions_in_use(OutboxDatabase *db);

/* What a settle stores. */
typedef struct OutboxPositions
{
	int			piece;
	int			n;
	int			max;
	Datum	   *values;
	bool	   *nulls;
	TimestampTz now;
} OutboxPositions;

extern void outbox_positions_begin(OutboxPositions *p);

/* 'ep' NULL: the position that our idle endpoints share. */
extern void outbox_positions_add(OutboxPositions *p, OutboxEndpoint *ep,
								 const OutboxCursor *c);
extern void outbox_positions_write(OutboxPositions *p);

/* Which moment of the log had which time. */
extern void outbox_positions_write_tick(const OutboxTick *tick, int piece);

/* The snapshot of a tick, as a value. */
extern Datum outbox_snapshot_datum(const OutboxTick *tick);

/*
 * Positions fill up: write what counts to the other table, truncate this one.
 * For the worker that serves the database.
 */
extern bool outbox_positions_want_compaction(TimestampTz now);
extern bool outbox_positions_compact(void);

#endif /* OUTBOX_POSITIONS_H */
