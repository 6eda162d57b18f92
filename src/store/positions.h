/*
 * positions.h
 *	  Stored positions: how far each endpoint has read the log.
 *
 * All functions here run inside a transaction of transaction.h, except
 * outbox_positions_init() and the compaction (compaction.c), which has its own.
 */
#ifndef OUTBOX_POSITIONS_H
#define OUTBOX_POSITIONS_H

#include "base/table_rows.h"
#include "endpoint/endpoint.h"

/* A position as it is stored. */
typedef struct OutboxPosition
{
	int64		 generation;
	int32		 follows; /* the id of a shared row (0: none) */
	OutboxCursor cursor;
	int			 npending;
	int64		*pending;
	int64		 delivered;
	int64		 failed_attempts;
	int64		 counters[OUTBOX_COUNTERS];
	TimestampTz	 failing_since; /* 0: it does not fail */
	TimestampTz	 settled_at;	/* when the row was written */
	bool		 failing_told;
	TimestampTz	 state_since;
	int			 probes; /* failed ones in a row (-1: its breaker is closed) */
} OutboxPosition;

extern void outbox_positions_init(void);

/*
 * The newest position of an endpoint in SQL: a row, or none.  _read makes a position of
 * its columns.  That is the endpoint's own position, or the one that it shares.  False:
 * none is stored, and '*position' is all zeros.  The caller clears the cursor.
 */
#define OUTBOX_CURSOR_COLUMNS \
	"read_tick, read::pg_catalog.text, read_seq_low, reading_tick," \
	" reading::pg_catalog.text, reading_seq_low, reading_seq_high, last_seq, settled_at"
#define OUTBOX_POSITION_OF(id) \
	"(SELECT " OUTBOX_CURSOR_COLUMNS ", generation, shared, pending, delivered," \
	" failed_attempts, counters, failing_since, failing_told, state_since," \
	" COALESCE(probes, -1)" \
	" FROM outbox.positions WHERE endpoint_id = " id " ORDER BY number DESC LIMIT 1)"
extern bool outbox_position_read(OutboxColumns row, OutboxPosition *position);

/* From now on a shared position is read from the table again. */
extern void outbox_positions_read_again(void);

/* Reads the shared position that was written last.  False: there is none. */
extern bool outbox_position_newest_shared(OutboxCursor *cursor);

/*
 * This worker goes on with that row, instead of making its own, if any of these
 * endpoints follows it.  Endpoints that follow it then need no row of their own.  They
 * must be all endpoints of the database: so the worker that made the row has ended, and
 * no other goes on with it.
 */
extern void outbox_positions_continue_shared(OutboxEndpoint **all, int n);

/* Loads the events that were pending when the position was written. */
extern void outbox_position_load_pending(OutboxEndpoint *ep, const int64 *seqs, int n);

/* Raises the counters in shared memory to the highest numbers in the tables. */
extern void outbox_positions_raise_numbers(void);

/*
 * Notes in shared memory which of the two tables of positions is in use, and how
 * many rows it has.
 */
extern void outbox_positions_in_use(void);

/* So many snapshots are remembered: the positions that a settle stores have few. */
#define OUTBOX_POSITION_SNAPSHOTS 8

/* The position rows that a settle will store. */
typedef struct OutboxPositions
{
	int			piece;
	OutboxRows	rows;
	TimestampTz now;

	struct
	{
		const OutboxTick *tick; /* NULL: none */
		Datum			  datum;
	} snapshots[OUTBOX_POSITION_SNAPSHOTS]; /* by the number of the tick */
} OutboxPositions;

/* Begins with no rows.  _write appends the rows that were added to the table. */
extern void outbox_positions_begin(OutboxPositions *p);

/*
 * Adds a row.  'ep' NULL: the position that the idle endpoints of this worker
 * share.
 */
extern void outbox_positions_add(OutboxPositions *p, OutboxEndpoint *ep,
								 const OutboxCursor *c);
extern void outbox_positions_write(OutboxPositions *p);

/*
 * Stores that the subscription holds from this place in the log on.  Whether an
 * event was for the endpoint is decided by the subscription at the event's place.
 */
extern void outbox_subscription_write(OutboxEndpoint *ep, const OutboxCursor *c);

/*
 * The totals of the database (totals.c) are the counters of endpoint 0, which has no
 * settings.  The first adds a row for them, the second reads them.  False: none are
 * stored, and they are all 0.
 */
extern void outbox_positions_add_totals(OutboxPositions *p, const OutboxCursor *head,
										const int64 *totals);
extern bool outbox_positions_read_totals(int64 *totals);

/*
 * Stores the time of a tick, so that a time can be turned into a place in the log.  If its
 * table is locked, it does nothing: that time then leads to the place of the tick before.
 */
extern void outbox_positions_write_tick(const OutboxTick *tick, int piece);

/* Returns the snapshot of a tick as a pg_snapshot. */
extern Datum outbox_snapshot_datum(const OutboxTick *tick);

/*
 * When the table of positions is full: truncates the other table, and writes the
 * current ones to it.  For the worker that serves the database.  False: the
 * tables are in use, and it will be tried again.
 */
extern bool outbox_positions_want_compaction(TimestampTz now);
extern bool outbox_positions_compact(void);

#endif /* OUTBOX_POSITIONS_H */
