/*
 * retention.c
 *	  Owns the removal of old events and attempts.  Each log consists of three tables,
 *	  used in turn.  It grows by appending and shrinks by truncating one table, never
 *	  row by row.
 *
 * The table in use changes after half the retention.  So with three tables, the one
 * that is used next holds nothing younger than the retention.  For attempts that is
 * all.  A table of events must also hold nothing that an endpoint has yet to read: see
 * count_needing().
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/crash_point.h"
#include "base/query.h"
#include "base/settings.h"
#include "log/kept.h"
#include "log/reserve.h"
#include "log/retention.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/subscription.h"

static int		   events_piece;
static int		   attempts_piece;
static TimestampTz events_since;
static TimestampTz attempts_since;
static int		   events_keep;	  /* s: outbox.retention_here has it (0: the setting) */
static int		   attempts_keep; /* the same */
static TimestampTz retry_at;
static bool		   ahead;  /* outbox.pieces has a time in the future */
static bool		   passed; /* that piece was passed when this was last looked at */

/* µs: after a table could not be emptied, or so many times as long as looking took. */
#define RETRY_AFTER (10 * USECS_PER_SEC)
#define REST 19

static int
next_piece(int piece)
{
	return (piece + 1) % OUTBOX_LOG_PIECES;
}

int
outbox_retention_of_events(void)
{
	return events_keep > 0 ? events_keep : outbox_retention;
}

static int
retention_of_attempts(void)
{
	return attempts_keep > 0 ? attempts_keep : outbox_attempts_retention;
}

void
outbox_retention_configure(void)
{
	int events = 0;
	int attempts = 0;

	outbox_query("SELECT log, pg_catalog.date_part('epoch', keep)::pg_catalog.int4"
				 " FROM outbox.retention_here");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char *log;
		int32 seconds;

		outbox_read_row(i, into_text(&log), into_int4(&seconds));
		if (strcmp(log, "events") == 0)
			events = seconds;
		else
			attempts = seconds;
	}
	events_keep = events;
	attempts_keep = attempts;
}

void
outbox_retention_init(void)
{
	TimestampTz now = GetCurrentTimestamp();

	ahead = false;
	outbox_kept_init();
	outbox_retention_configure();
	outbox_query("SELECT log, piece, since FROM outbox.pieces");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *log;
		int16		piece;
		TimestampTz since;

		outbox_read_row(i, into_text(&log), into_int2(&piece), into_time(&since));

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
	pg_atomic_write_u32(&outbox_db->piece, events_piece);
	pg_atomic_write_u32(&outbox_db->attempts_piece, attempts_piece);
	retry_at = now;
}

static TimestampTz
due(TimestampTz since, int retention)
{
	return Max(retry_at,
			   since + (int64) retention * USECS_PER_SEC / (OUTBOX_LOG_PIECES - 1));
}

/*
 * Returns how many places of endpoints and replays have not passed this piece of the log,
 * and in '*beyond' how many of these have passed all numbers up to 'upto'.
 *
 * A row that some place has not passed is needed, for a replay up to its target ('upto').
 * So is a row that was in flight when the position was written.  Each is looked up as the
 * reader would find it (log.c), and none that was read is examined: the piece may be full
 * of them.
 *
 * To empty the piece, the caller has locked it against all other sessions.  The snapshot
 * must be taken after that: with an older one, a transaction could still commit an event
 * into the piece unseen.  Meanwhile no endpoint can be made, and no other worker can store
 * a position or park a delivery.  All of these take a lock that conflicts with the caller's
 * lock on the settings.
 */
static int64
count_needing(int piece, int64 upto, int64 *beyond)
{
	char  sql[3072];
	int64 needing;

	/*
	 * In this order: events in no tick yet, events left of a tick, events that were in
	 * flight.
	 */
#define EVENT " EXISTS (SELECT 1 FROM outbox.events_%1$d e WHERE "
#define SEEN_BY "pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), "
#define NEW " AND NOT " SEEN_BY "p.latest)) OR"
#define NOT_READ \
	" AND NOT " SEEN_BY "p.read)" \
	" AND (p.upto IS NULL OR " SEEN_BY "p.reading)))"
	snprintf(sql, sizeof(sql),
			 "SELECT count(*), count(*) FILTER (WHERE p.seq >= $1)"
			 " FROM (SELECT DISTINCT ON"
			 " (read::text, reading::text, last_seq, upto, pending) *"
			 " FROM (SELECT read, reading, COALESCE(reading, read) AS latest, last_seq,"
			 " seq, NULL::int8 AS upto, pending FROM outbox.endpoint_positions"
			 " UNION ALL SELECT r.read, r.target, NULL, l.last_seq,"
			 " GREATEST(r.read_seq_low, l.last_seq), r.target_seq_high, NULL"
			 " FROM outbox.replays r CROSS JOIN LATERAL"
			 " (SELECT CASE WHEN r.reading THEN r.last_seq ELSE 0 END AS last_seq) l"
			 " WHERE r.finished_at IS NULL) AS q) AS p WHERE" EVENT
			 "e.xid >= pg_snapshot_xmax(p.latest)" NEW EVENT
			 "e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(p.latest)))" NEW
			 " p.reading IS NOT NULL AND (" EVENT
			 "e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(p.read)))"
			 " AND e.seq > p.last_seq" NOT_READ " OR" EVENT
			 "e.seq > p.seq AND e.seq <= COALESCE(p.upto, 9223372036854775807)" NOT_READ
			 ") OR" EVENT "e.seq = ANY (outbox.pending_seqs(p.pending))"
			 " AND outbox.log_xid(e.epoch, e.xid) IS NOT NULL)",
			 piece);
#undef EVENT
#undef SEEN_BY
#undef NEW
#undef NOT_READ
	outbox_query(sql, arg_int8(upto));
	outbox_read_row(0, into_int8(&needing), into_int8(beyond));
	return needing;
}

static void
use_piece(const char *log, int piece)
{
	outbox_query("UPDATE outbox.pieces SET piece = $2, since = pg_catalog.now()"
				 " WHERE log = $1",
				 arg_text(log), arg_int2(piece));
}

/*
 * A piece whose time is in the future would not be due before then, however often a
 * worker starts until then.
 */
static void
correct_times(void *done)
{
	*(bool *) done = outbox_txn_begin(true);
	if (!*(bool *) done)
		return;
	outbox_query("UPDATE outbox.pieces SET since = $1 WHERE since > $1",
				 arg_time(GetCurrentTimestamp()));
	outbox_txn_commit();
}

/*
 * Never waits for a lock: every emit would queue up behind the waiting request.  Transactions
 * that overlap may lock a table for ever.  So the step is on hold until it is free, and says so.
 */
static void
lock_to_empty(OutboxTable table, LOCKMODE mode)
{
	if (!outbox_lock_if_free(table, table, mode))
		outbox_throw_locked(table);
}

/*
 * Forgets subscriptions that judge no event any more: a later one of the endpoint begins
 * before all events that are left, and none is kept for it.  Of events that came with an
 * adopted log the numbers of transactions do not say so.
 */
static void
forget_subscriptions(void)
{
	outbox_query(
		"WITH oldest AS (SELECT min(e.xid) AS xid FROM outbox.events e),"
		" kept AS (SELECT max(e.seq) AS seq FROM outbox.kept_events e),"
		" needless AS MATERIALIZED (SELECT w.endpoint_id, max(w.version) AS version"
		" FROM outbox.subscriptions w, oldest o"
		" WHERE pg_snapshot_xmax(COALESCE(w.reading, w.read)) <= o.xid"
		" AND outbox.current_epoch() = (SELECT f.epoch FROM outbox.events f ORDER BY f.seq LIMIT 1)"
		" GROUP BY w.endpoint_id HAVING count(*) > 1"
		" AND COALESCE((SELECT min(k.seq) FROM outbox.parked k"
		" WHERE k.endpoint_id = w.endpoint_id) > (SELECT e.seq FROM kept e), true))"
		" DELETE FROM outbox.subscriptions v USING needless n"
		" WHERE v.endpoint_id = n.endpoint_id AND v.version < n.version");
}

/*
 * Asks the workers to move endpoints on that have not passed the piece.  If others have
 * passed all of its numbers, they lack rows of transactions that committed late, and get
 * them when they read up to the end of the log.
 */
static void
ask_to_pass(int piece, int64 beyond)
{
	char  sql[256];
	int64 upto;

	snprintf(sql, sizeof(sql),
			 "SELECT CASE WHEN $1 = 0 THEN LEAST(q.last_value, (SELECT max(e.seq)"
			 " FROM outbox.events_%d e)) ELSE q.last_value END FROM outbox.events_seq q",
			 piece);
	outbox_query(sql, arg_int8(beyond));
	outbox_read_row(0, into_int8(&upto));
	if (upto != (int64) pg_atomic_exchange_u64(&outbox_db->due_upto, (uint64) upto))
		outbox_workers_wake(outbox_db, true);
}

/* Looks without a lock.  Returns true if no endpoint needs the piece. */
static bool
is_passed(int piece)
{
	int64 beyond;
	int64 upto = (int64) pg_atomic_read_u64(&outbox_db->due_upto);
	bool  passed;

	if (!outbox_txn_begin(true))
		return false;
	passed = count_needing(piece, upto == 0 ? PG_INT64_MAX : upto, &beyond) == 0;
	if (!passed)
		ask_to_pass(piece, beyond);
	outbox_txn_commit();
	return passed;
}

/*
 * It is also done if events of the piece must be copied before it can be emptied.
 * This is called again when they are.
 */
static void
rotate_events(void *arg)
{
	bool *done = arg;
	int	  next = next_piece(events_piece);
	int64 beyond;

	*done = false;
	passed = passed || is_passed(next);
	if (!passed || !outbox_txn_begin(true))
		return;

	lock_to_empty(OUTBOX_TABLE_EVENTS_0 + next, AccessExclusiveLock);
	lock_to_empty(OUTBOX_TABLE_TICKS_0 + next, AccessExclusiveLock);
	lock_to_empty(OUTBOX_TABLE_ENDPOINT_SETTINGS, ShareRowExclusiveLock);
	passed = false;
	if (count_needing(next, 0, &beyond) > 0)
	{
		outbox_txn_abort();
		return;
	}
	OUTBOX_CRASH_POINT("rotate.locked");
	*done = true;
	if (!outbox_kept_copy_rest(next))
		return;
	OUTBOX_CRASH_POINT("rotate.kept");
	(void) outbox_reserve_give_up(OUTBOX_RESERVE_TO_EMPTY);
	outbox_empty_table(outbox_table_oid(OUTBOX_TABLE_EVENTS_0 + next));
	outbox_empty_table(outbox_table_oid(OUTBOX_TABLE_TICKS_0 + next));
	OUTBOX_CRASH_POINT("rotate.truncated");
	use_piece("events", next);
	forget_subscriptions();
	OUTBOX_CRASH_POINT("rotate.written");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("rotate.committed");

	events_piece = next;
	events_since = GetCurrentTimestamp();
	pg_atomic_write_u32(&outbox_db->piece, next);
	pg_atomic_write_u64(&outbox_db->due_upto, 0);
	outbox_kept_emptied();
}

static void
rotate_attempts(void *arg)
{
	bool *done = arg;
	int	  next = next_piece(attempts_piece);

	*done = false;
	if (!outbox_txn_begin(true))
		return;
	lock_to_empty(OUTBOX_TABLE_ATTEMPT_LOG_0 + next, AccessExclusiveLock);
	lock_to_empty(OUTBOX_TABLE_ATTEMPT_RUNS_0 + next, AccessExclusiveLock);
	(void) outbox_reserve_give_up(OUTBOX_RESERVE_TO_EMPTY);
	outbox_empty_table(outbox_table_oid(OUTBOX_TABLE_ATTEMPT_LOG_0 + next));
	outbox_empty_table(outbox_table_oid(OUTBOX_TABLE_ATTEMPT_RUNS_0 + next));
	OUTBOX_CRASH_POINT("attempts.truncated");
	use_piece("attempts", next);
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("attempts.committed");

	attempts_piece = next;
	pg_atomic_write_u32(&outbox_db->attempts_piece, next);
	attempts_since = GetCurrentTimestamp();
	*done = true;
}

static bool
is_tidying(void)
{
	return outbox_kept_tidy_time() != DT_NOEND && !outbox_step_held(OUTBOX_STEP_TIDY, 0);
}

/* It does not wait for tidying, which may go on for as long as copies are released. */
static TimestampTz
events_due(void)
{
	if (outbox_kept_copy_time() != DT_NOEND || outbox_step_held(OUTBOX_STEP_RETENTION, 0))
		return DT_NOEND;
	return due(events_since, outbox_retention_of_events());
}

TimestampTz
outbox_retention_next_time(void)
{
	TimestampTz next = events_due();

	if (!outbox_step_held(OUTBOX_STEP_RETENTION, 0))
		next = ahead ? retry_at : next;
	if (!ahead && !outbox_step_held(OUTBOX_STEP_FORGET_ATTEMPTS, 0))
		next = Min(next, due(attempts_since, retention_of_attempts()));
	if (!outbox_step_held(OUTBOX_STEP_RETENTION, 0))
		next = Min(next, outbox_kept_copy_time());
	return is_tidying() ? Min(next, outbox_kept_tidy_time()) : next;
}

bool
outbox_retention_checks_log(TimestampTz now)
{
	return now >= events_due();
}

static void
copy_kept(void *arg)
{
	outbox_kept_copy(next_piece(events_piece));
}

void
outbox_retention_run(void)
{
	TimestampTz		now = GetCurrentTimestamp();
	bool			judges = outbox_retention_checks_log(now);
	int				pieces = events_piece + attempts_piece * OUTBOX_LOG_PIECES;
	OutboxStepError failure;
	bool			failed = false;
	bool			done;

	if (ahead && outbox_step_run(OUTBOX_STEP_RETENTION, correct_times, &done))
	{
		ahead = !done;
		failed = ahead;
	}
	if (now >= due(attempts_since, retention_of_attempts()) &&
		outbox_step_run(OUTBOX_STEP_FORGET_ATTEMPTS, rotate_attempts, &done))
		failed |= !done;
	if (now >= outbox_kept_copy_time())
		(void) outbox_step_run(OUTBOX_STEP_RETENTION, copy_kept, NULL);
	if (now >= outbox_kept_tidy_time())
		(void) outbox_step_run(OUTBOX_STEP_TIDY, outbox_kept_tidy, NULL);
	if (judges && outbox_step_run(OUTBOX_STEP_RETENTION, rotate_events, &done))
		failed |= !done;
	if (pieces != events_piece + attempts_piece * OUTBOX_LOG_PIECES)
		(void) outbox_step_try(outbox_reserve_fill, NULL, &failure);
	if (failed)
	{
		int64 wait = Min(RETRY_AFTER,
						 (int64) outbox_retention_of_events() * USECS_PER_SEC / 10);

		retry_at = Max(now + Max(wait, 100 * 1000), outbox_step_rest(now, REST));
	}
}
