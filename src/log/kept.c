/*
 * kept.c
 *	  Owns outbox.kept_events: copies of events that outlive their piece of the log,
 *	  because a parked delivery needs them.
 *
 * There may be millions of them, and the worker does nothing else while it copies.  So
 * they are copied before the piece is emptied, in slices.  Each slice is a short
 * transaction, in the order of the numbers in outbox.parked.  Until the piece is
 * emptied, its rows are the events, and their copies are ignored: views and lookups
 * use a kept row only if the log has none.  The table is emptied for all snapshots at
 * once, so this is true in each of them.
 *
 * A transaction that parks a delivery of an event which a slice has passed copies the
 * event itself (outbox_kept_add()).  Shared memory says which numbers that concerns.
 * It is written under a lock that excludes all these transactions.  So no parked
 * delivery is ever missed.
 *
 * A worker that dies leaves copies behind.  They belong to the piece that is emptied
 * next, so the next worker finds them, and copies nothing twice.  Copies that no
 * delivery needs are removed after their piece was emptied.
 */
#include "base/outbox.h"

#include "access/table.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "log/kept.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"

/* The limits of a slice: rows, and the time (µs) after which it ends. */
#define SLICE_ROWS 1000
#define SLICE_TIME (10 * 1000)

/* A statement about nothing that took less (µs) is followed by one with more numbers. */
#define QUICK 200
#define SPAN_MAX (64 * SLICE_ROWS)

/* Number of small events that one statement copies. */
#define COPIED_AT_ONCE 16

/*
 * Between two slices, the worker does other work for REST times as long as the slice
 * took.
 */
#define REST 2

/* Wait after a lock was not free (µs). */
#define AGAIN_AFTER (200 * 1000)

static bool copying; /* slices were copied, and the piece is not emptied */
/* Events up to this number are copied.  The copy ends at 'upto'. */
static int64	   copied;
static int64	   upto;
static TimestampTz copy_at = DT_NOEND;
static TimestampTz tidy_at = DT_NOEND;
static int64	   tidied; /* up to this number, copies were checked */

void
outbox_kept_init(void)
{
	copying = false;
	copy_at = tidy_at = DT_NOEND;
	tidied = 0;
}

/*
 * Rows of other logs may have the same numbers, and are left out.  A row that is
 * already there is not written again.
 */
static void
copy_events(int piece, const int64 *seqs, int n)
{
	static SPIPlanPtr plans[OUTBOX_LOG_PIECES];
	char			  sql[512];

	snprintf(sql, sizeof(sql),
			 "INSERT INTO outbox.kept_events SELECT e.seq, e.xid, e.epoch, e.id,"
			 " e.created_at, e.expires_at, e.topic, e.type, e.key, e.tenant, e.headers,"
			 " e.payload, e.body, e.content_type FROM outbox.events_%d e"
			 " WHERE e.seq = ANY ($1) AND outbox.log_xid(e.epoch, e.xid) IS NOT NULL"
			 " ON CONFLICT (seq, epoch) DO NOTHING",
			 piece);
	outbox_plan_run_kept(&plans[piece], sql, arg_int8s(seqs, n));
}

/*
 * Number of events that are copied before the time is checked.  It is above 1 only if
 * the piece has no TOAST data, so all its events are small.
 */
static int
copied_at_once(int piece)
{
	Relation rel = table_open(outbox_table_oid(OUTBOX_TABLE_EVENTS_0 + piece), NoLock);
	Relation toast = table_open(rel->rd_rel->reltoastrelid, AccessShareLock);
	int		 n = RelationGetNumberOfBlocks(toast) > 0 ? 1 : COPIED_AT_ONCE;

	table_close(toast, NoLock);
	table_close(rel, NoLock);
	return n;
}

/* Finds the lowest or the highest number behind 'from' in the piece.  False: there is none. */
static bool
find_end(int piece, int64 from, bool highest, int64 *seq)
{
	char sql[128];

	snprintf(
		sql, sizeof(sql),
		"SELECT e.seq FROM outbox.events_%d e WHERE e.seq > $1 ORDER BY e.seq %s LIMIT 1",
		piece, highest ? "DESC" : "ASC");
	if (outbox_query(sql, arg_int8(from)) == 0)
		return false;
	outbox_read_row(0, into_int8(seq));
	return true;
}

/*
 * Copies the slice after the number 'from', in the present transaction.  Returns the
 * number up to which all is copied then.
 */
static int64
copy_slice(int piece, int64 from)
{
	TimestampTz until = GetCurrentTimestamp() + SLICE_TIME;
	int			at_once = copied_at_once(piece);
	int64		span = SLICE_ROWS;

	/*
	 * Rows that were deleted, and that a snapshot keeps, are read as well.  So a statement
	 * has few numbers, and more of them while there is nothing.
	 */
	while (from < upto)
	{
		TimestampTz begun = GetCurrentTimestamp();
		int64		end = from + Min(span, upto - from);
		int			n = (int) outbox_plan_run("SELECT p.seq FROM outbox.parked p"
													  " WHERE p.seq > $1 AND p.seq <= $2"
													  " ORDER BY p.seq LIMIT $3",
											  arg_int8(from), arg_int8(end),
											  arg_int8(SLICE_ROWS));
		int64	   *seqs = palloc(sizeof(int64) * Max(n, 1));
		int			nseqs = 0;

		/* An event that is parked for several endpoints has several rows. */
		for (int i = 0; i < n; i++)
		{
			int64 seq;

			outbox_read_row(i, into_int8(&seq));
			if (nseqs == 0 || seqs[nseqs - 1] != seq)
				seqs[nseqs++] = seq;
		}
		for (int i = 0; i < nseqs; i += at_once)
		{
			int m = Min(at_once, nseqs - i);

			if (i > 0 && GetCurrentTimestamp() >= until)
				return from;
			copy_events(piece, &seqs[i], m);
			from = seqs[i + m - 1];
		}
		OUTBOX_CRASH_POINT("keep.copied");
		if (n < SLICE_ROWS)
			from = end;
		if (n > 0 || GetCurrentTimestamp() >= until)
			break;
		span = GetCurrentTimestamp() - begun < QUICK ? Min(span * 2, SPAN_MAX) :
													   SLICE_ROWS;
		if (span == SPAN_MAX)
			from = find_end(piece, from, false, &end) ? Min(end - 1, upto) : upto;
	}
	return from;
}

/*
 * 'copying' is false until the commit.  So after an error, all begins anew, and finds
 * the copies that exist.  A transaction that was open for long may have written numbers
 * above 'upto' since that was read.
 */
bool
outbox_kept_copy_rest(int piece)
{
	TimestampTz begun = GetCurrentTimestamp();
	int64		from = copied;
	int64		last;
	bool		complete = true;
	bool		begins = !copying;

	copying = false;
	if (find_end(piece, PG_INT64_MIN, true, &last))
	{
		if (begins)
		{
			find_end(piece, PG_INT64_MIN, false, &from);
			from--;
			upto = last;
		}
		upto = Max(upto, last);
		if (from < upto)
			from = copy_slice(piece, from);
		complete = from >= upto;
	}
	pg_atomic_write_u64(&outbox_db->keep_upto, complete ? 0 : upto);
	if (complete)
		return true;
	outbox_txn_commit();
	copying = true;
	copied = from;
	copy_at = outbox_step_rest(begun, REST);
	return false;
}

TimestampTz
outbox_kept_copy_time(void)
{
	return copying && copied < upto ? copy_at : DT_NOEND;
}

void
outbox_kept_copy(int piece)
{
	TimestampTz begun = GetCurrentTimestamp();
	int64		from;

	if (!outbox_txn_begin(true))
	{
		copy_at = begun + AGAIN_AFTER;
		return;
	}
	copying = false;
	from = copy_slice(piece, copied);
	outbox_txn_commit();
	copying = true;
	copied = from;
	copy_at = outbox_step_rest(begun, REST);
}

void
outbox_kept_add(const int64 *seqs, int n)
{
	OutboxDatabase *slot = outbox_database_slot(MyDatabaseId, false);
	int64			limit = slot ? (int64) pg_atomic_read_u64(&slot->keep_upto) : 0;
	int64		   *passed;
	int				npassed = 0;

	if (limit == 0 || n == 0)
		return;
	passed = palloc(sizeof(int64) * n);
	for (int i = 0; i < n; i++)
		if (seqs[i] <= limit)
			passed[npassed++] = seqs[i];
	if (npassed > 0 &&
		!outbox_lock_if_free(OUTBOX_TABLE_KEPT_EVENTS, OUTBOX_TABLE_KEPT_EVENTS,
							 RowExclusiveLock))
		outbox_throw_locked(OUTBOX_TABLE_KEPT_EVENTS);
	if (npassed > 0)
		copy_events(((int) pg_atomic_read_u32(&slot->piece) + 1) % OUTBOX_LOG_PIECES,
					passed, npassed);
	pfree(passed);
}

/* A pass of tidying that has begun may have passed copies of this piece. */
void
outbox_kept_emptied(void)
{
	pg_atomic_write_u32(&outbox_db->released, 1);
}

/* Another worker may serve the database. */
void
outbox_kept_released(void)
{
	pg_atomic_write_u32(&outbox_db->released, 1);
	outbox_workers_wake(outbox_db, true);
}

/* Copying may begin before all is removed.  Then it goes on behind 'tidied' afterwards. */
TimestampTz
outbox_kept_tidy_time(void)
{
	if (copying)
		return DT_NOEND;
	return tidied == 0 && outbox_serves_database() &&
			pg_atomic_read_u32(&outbox_db->released) ?
		0 :
		tidy_at;
}

/* A pass that has begun goes on to its end.  Else its last copies might never be examined. */
static void
notice_released(TimestampTz now)
{
	if (tidied == 0 && pg_atomic_exchange_u32(&outbox_db->released, 0) != 0)
		tidy_at = now;
}

/*
 * Removes a slice of the table, in the order of seq: events whose deliveries have
 * ended, and the rows of their cancelled deliveries.  Not while events are copied,
 * because a transaction that parks a delivery then relies on the copy that it finds.
 * When copying was broken off, there are copies of events that the log still has.  They
 * stay: without its row, a cancelled event of the log would be sent again.
 *
 * Nothing is joined, which the LIMITs ensure.  When the planner takes tables for empty
 * that are not, it reads a whole one for each row of another.  And only events that no
 * delivery needs are looked for in the log, which the CASE ensures.
 *
 * An event of a tenant stays while an attempt has an answer or an error:
 * outbox.forget() finds attempts by their events.
 */
void
outbox_kept_tidy(void *unused)
{
	TimestampTz begun = GetCurrentTimestamp();
	int64		last;

	Assert(!copying);
	notice_released(begun);
	if (!outbox_txn_begin(true))
	{
		tidy_at = begun + AGAIN_AFTER;
		return;
	}
	if (!outbox_lock_if_free(OUTBOX_TABLE_ATTEMPT_LOG, OUTBOX_TABLE_ATTEMPT_LOG_2,
							 AccessShareLock))
	{
		outbox_txn_abort();
		tidy_at = begun + AGAIN_AFTER;
		return;
	}
	outbox_query("WITH slice AS MATERIALIZED (SELECT seq FROM outbox.kept_events"
				 " WHERE seq > $1 ORDER BY seq LIMIT $2),"
				 " gone AS (DELETE FROM outbox.kept_events k"
				 " WHERE k.seq > $1 AND k.seq <="
				 " (SELECT pg_catalog.max(s.seq) FROM slice s)"
				 " AND CASE WHEN (SELECT p.seq FROM outbox.parked p"
				 " WHERE p.seq = k.seq AND p.status <> 'cancelled' LIMIT 1) IS NULL"
				 " THEN (SELECT e.seq FROM outbox.events e"
				 " WHERE e.seq = k.seq AND e.epoch = k.epoch LIMIT 1) IS NULL"
				 " ELSE false END AND (k.tenant IS NULL OR"
				 " (SELECT a.seq FROM outbox.attempt_log a"
				 " WHERE a.seq = k.seq AND (a.response_body IS NOT NULL"
				 " OR a.response_headers IS NOT NULL"
				 " OR a.error <> 'forgotten') LIMIT 1) IS NULL)"
				 " RETURNING k.seq), cancelled AS (DELETE FROM outbox.parked p"
				 " WHERE p.seq = ANY (ARRAY(SELECT g.seq FROM gone g))"
				 " AND p.status = 'cancelled')"
				 " SELECT CASE WHEN pg_catalog.count(*) = $2 THEN pg_catalog.max(seq) END"
				 " FROM slice",
				 arg_int8(tidied), arg_int8(SLICE_ROWS));
	outbox_read_row(0, into_int8(&last));
	OUTBOX_CRASH_POINT("tidy.deleted");
	outbox_txn_commit();
	tidied = last;
	tidy_at = tidied == 0 ? DT_NOEND : outbox_step_rest(begun, REST);
}
