/*
 * retention.c
 *	  Forgets: the log and the attempts grow by appending and shrink by
 *	  truncating one of three tables, used in turn.  Never row by row.
 *
 * With three tables and a change after half the retention, the table that is
 * about to be used again holds nothing younger than the retention.  For
 * attempts that is all.  A table of events must not hold anything that an
 * endpoint has yet to read: the gate below.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "crash_point.h"
#include "plan.h"
#include "retention.h"
#include "session.h"
#include "subscription.h"

static OutboxDatabase *db;
static int	events_piece;
static int	attempts_piece;
static TimestampTz events_since;
static TimestampTz attempts_since;
static TimestampTz look_again_at;
static bool ahead;				/* outbox.pieces holds a time that is yet to come */
static bool locked_out;			/* somebody has a lock on what is to go */
static TimestampTz tidy_at = DT_NOEND;	/* the next slice of kept events */

/* After a table could not be dropped. */
#define LOOK_AGAIN_AFTER (10 * USECS_PER_SEC)

/*
 * The same, when that may be another worker: each has a lock for a moment, many
 * times a second.
 */
#define LOOK_AGAIN_SOON (200 * 1000)

/* Between two slices of kept events. */
#define TIDY_EVERY (50 * 1000)

static int
next_piece(int piece)
{
	return (piece + 1) % OUTBOX_LOG_PIECES;
}

static void
execute(const char *sql)
{
	outbox_query(sql, 0, NULL, NULL, NULL);
}

void
outbox_retention_init(OutboxDatabase *database)
{
	TimestampTz now = GetCurrentTimestamp();

	db = database;
	ahead = false;
	execute("SELECT log, piece, since FROM outbox.pieces");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		TupleDesc	desc = SPI_tuptable->tupdesc;
		HeapTuple	tuple = SPI_tuptable->vals[i];
		bool		isnull;
		char	   *log = SPI_getvalue(tuple, desc, 1);
		int			piece = DatumGetInt16(SPI_getbinval(tuple, desc, 2, &isnull));
		TimestampTz since = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 3, &isnull));

		/* The clock was ahead when that was written. */
		if (since > now)
		{
			since = now;
			ahead = true;
		}
		if (strcmp(log, "events") == 0)
		{
			events_piece = piece;
			events_since = since;
		}
		else
		{
			attempts_piece = piece;
			attempts_since = since;
		}
	}
	pg_atomic_write_u32(&db->piece, events_piece);
	pg_atomic_write_u32(&db->attempts_piece, attempts_piece);
	look_again_at = now;
}

static TimestampTz
due(TimestampTz since, int retention)
{
	return Max(look_again_at,
			   since + (int64) retention * USECS_PER_SEC / (OUTBOX_LOG_PIECES - 1));
}

TimestampTz
outbox_retention_next_time(void)
{
	if (ahead)
		return Min(tidy_at, look_again_at);
	return Min(tidy_at, Min(due(events_since, outbox_retention),
							due(attempts_since, outbox_attempts_retention)));
}

/*
 * Has everybody done with this piece of the log?  Asked with the piece locked
 * against everyone, and with a snapshot taken after that: before, somebody
 * could still commit an event into it.  No endpoint can be made meanwhile, and
 * no other worker can store a position or park a delivery, for all of that takes
 * a lock that conflicts with ours on the settings.
 *
 * A row that some position has not come past is needed; so is one that was on
 * its way when the position was written.  What a laggard has not read yet is
 * looked for where it reads: of all that it has read this piece may be full.
 */
static bool
everybody_is_done(int piece)
{
	char		sql[2048];

	snprintf(sql, sizeof(sql),
			 "SELECT 1 FROM (SELECT DISTINCT ON (done::pg_catalog.text,"
			 " under::pg_catalog.text, last_seq, pending) done, under, last_seq, pending"
			 " FROM (SELECT done, under, last_seq, pending FROM outbox.endpoint_positions"
			 " UNION ALL SELECT done, NULL, 0, NULL FROM outbox.replays"
			 " WHERE finished_at IS NULL) AS q) AS p"
			 " WHERE (p.under IS NOT NULL AND EXISTS (SELECT 1 FROM outbox.events_%d e"
			 " WHERE e.seq OPERATOR(pg_catalog.>) p.last_seq"
			 " AND NOT pg_catalog.pg_visible_in_snapshot("
			 "outbox.log_xid(e.epoch, e.xid), p.done)))"
			 " OR EXISTS (SELECT 1 FROM outbox.events_%d e"
			 " WHERE e.xid OPERATOR(pg_catalog.>=)"
			 " pg_catalog.pg_snapshot_xmin(p.done)"
			 " AND NOT pg_catalog.pg_visible_in_snapshot("
			 "outbox.log_xid(e.epoch, e.xid), p.done)"
			 " AND NOT (p.under IS NOT NULL"
			 " AND e.seq OPERATOR(pg_catalog.<=) p.last_seq"
			 " AND pg_catalog.pg_visible_in_snapshot("
			 "outbox.log_xid(e.epoch, e.xid), p.under)))"
			 " OR EXISTS (SELECT 1 FROM outbox.events_%d e"
			 " WHERE e.seq OPERATOR(pg_catalog.=) ANY (p.pending)"
			 " AND outbox.log_xid(e.epoch, e.xid) IS NOT NULL)"
			 " LIMIT 1", piece, piece, piece);
	execute(sql);
	return SPI_processed == 0;
}

/*
 * Parked deliveries still need their events.  Of all that is parked only what
 * can lie in this piece is looked at.  Rows of other logs may have the same
 * numbers.
 */
static void
keep_events(int piece)
{
	char		sql[1024];

	snprintf(sql, sizeof(sql),
			 "INSERT INTO outbox.kept_events SELECT e.seq, e.xid, e.epoch, e.id,"
			 " e.created_at, e.expires_at, e.topic, e.type, e.key, e.headers,"
			 " e.payload, e.body, e.content_type"
			 " FROM outbox.parked p JOIN outbox.events_%d e"
			 " ON e.seq OPERATOR(pg_catalog.=) p.seq"
			 " WHERE p.seq OPERATOR(pg_catalog.>=)"
			 " (SELECT pg_catalog.min(f.seq) FROM outbox.events_%d f)"
			 " AND p.seq OPERATOR(pg_catalog.<=)"
			 " (SELECT pg_catalog.max(l.seq) FROM outbox.events_%d l)"
			 " AND outbox.log_xid(e.epoch, e.xid) IS NOT NULL"
			 " ON CONFLICT (seq, epoch) DO NOTHING", piece, piece, piece);
	execute(sql);
}

static void
use_piece(const char *log, int piece)
{
	Datum		args[2] = {CStringGetTextDatum(log), Int16GetDatum(piece)};

	outbox_query("UPDATE outbox.pieces SET piece = $2, since = pg_catalog.now()"
				 " WHERE log OPERATOR(pg_catalog.=) $1",
				 2, (Oid[]) {TEXTOID, INT2OID}, args, NULL);
}

/*
 * A piece whose time is yet to come would not be due before, however often a
 * worker starts until then.
 */
static bool
correct_times(TimestampTz now)
{
	Datum		args[1] = {TimestampTzGetDatum(now)};

	if (!outbox_begin(true))
		return false;
	outbox_query("UPDATE outbox.pieces SET since = $1 WHERE since OPERATOR(pg_catalog.>) $1",
				 1, (Oid[]) {TIMESTAMPTZOID}, args, NULL);
	outbox_commit();
	return true;
}

static bool
lock_exclusively(OutboxTable table)
{
	return ConditionalLockRelationOid(outbox_session_table(table), AccessExclusiveLock);
}

static bool
rotate_events(void)
{
	int			next = next_piece(events_piece);
	Oid			settings = outbox_session_table(OUTBOX_TABLE_ENDPOINT_SETTINGS);

	if (!outbox_begin(true))
		return false;

	/*
	 * Never a waiting lock: while one waits, every emit would queue up behind
	 * it.
	 */
	locked_out = !lock_exclusively(OUTBOX_TABLE_EVENTS_0 + next) ||
		!lock_exclusively(OUTBOX_TABLE_TICKS_0 + next) ||
		!ConditionalLockRelationOid(settings, ShareRowExclusiveLock);
	if (locked_out || !everybody_is_done(next))
	{
		outbox_give_up();
		return false;
	}
	OUTBOX_CRASH_POINT("rotate.locked");
	keep_events(next);
	OUTBOX_CRASH_POINT("rotate.kept");
	outbox_empty_table(outbox_session_table(OUTBOX_TABLE_EVENTS_0 + next));
	outbox_empty_table(outbox_session_table(OUTBOX_TABLE_TICKS_0 + next));
	OUTBOX_CRASH_POINT("rotate.truncated");
	use_piece("events", next);
	OUTBOX_CRASH_POINT("rotate.written");
	outbox_commit();
	OUTBOX_CRASH_POINT("rotate.committed");

	events_piece = next;
	events_since = GetCurrentTimestamp();
	pg_atomic_write_u32(&db->piece, next);
	return true;
}

static bool
rotate_attempts(void)
{
	int			next = next_piece(attempts_piece);

	if (!outbox_begin(true))
		return false;
	if (!lock_exclusively(OUTBOX_TABLE_ATTEMPT_LOG_0 + next))
	{
		locked_out = true;
		outbox_give_up();
		return false;
	}
	outbox_empty_table(outbox_session_table(OUTBOX_TABLE_ATTEMPT_LOG_0 + next));
	OUTBOX_CRASH_POINT("attempts.truncated");
	use_piece("attempts", next);
	outbox_commit();
	OUTBOX_CRASH_POINT("attempts.committed");

	attempts_piece = next;
	pg_atomic_write_u32(&db->attempts_piece, next);
	attempts_since = GetCurrentTimestamp();
	return true;
}

/*
 * Events that were kept for deliveries which have ended since, and with them
 * the rows of those that were cancelled: a slice of the table, in the order of
 * seq, so that the loop goes on.  False: it is not through yet.
 */
static bool
drop_kept_events(void)
{
	static int64 from;
	Datum		args[1] = {Int64GetDatum(from)};
	bool		isnull;
	Datum		last;

	if (!outbox_begin(true))
		return false;
	outbox_query("WITH slice AS MATERIALIZED (SELECT seq FROM outbox.kept_events"
				 " WHERE seq OPERATOR(pg_catalog.>) $1 ORDER BY seq LIMIT 1000),"
				 " gone AS (DELETE FROM outbox.kept_events k USING slice s"
				 " WHERE k.seq OPERATOR(pg_catalog.=) s.seq AND NOT EXISTS"
				 " (SELECT 1 FROM outbox.parked p"
				 " WHERE p.seq OPERATOR(pg_catalog.=) k.seq"
				 " AND p.status OPERATOR(pg_catalog.<>) 'cancelled') RETURNING k.seq),"
				 " cancelled AS (DELETE FROM outbox.parked p USING gone g"
				 " WHERE p.seq OPERATOR(pg_catalog.=) g.seq"
				 " AND p.status OPERATOR(pg_catalog.=) 'cancelled')"
				 " SELECT CASE WHEN pg_catalog.count(*)"
				 " OPERATOR(pg_catalog.=) 1000 THEN pg_catalog.max(seq) END"
				 " FROM slice",
				 1, (Oid[]) {INT8OID}, args, NULL);
	last = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	from = isnull ? 0 : DatumGetInt64(last);
	OUTBOX_CRASH_POINT("tidy.deleted");
	outbox_commit();
	return from == 0;
}

void
outbox_retention_run(void)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		failed = false;

	locked_out = false;
	if (ahead)
	{
		ahead = !correct_times(now);
		failed = ahead;
	}
	if (now >= due(attempts_since, outbox_attempts_retention))
		failed |= !rotate_attempts();
	if (now >= due(events_since, outbox_retention))
	{
		if (rotate_events())
			tidy_at = now;
		else
			failed = true;
	}
	if (now >= tidy_at)
		tidy_at = drop_kept_events() ? DT_NOEND : now + TIDY_EVERY;
	if (failed)
	{
		int64		wait = Min(LOOK_AGAIN_AFTER,
							   (int64) outbox_retention * USECS_PER_SEC / 10);

		if (locked_out && db->nworkers > 1)
			wait = Min(wait, LOOK_AGAIN_SOON);
		look_again_at = now + Max(wait, 100 * 1000);
	}
}
