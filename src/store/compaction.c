/*
 * compaction.c
 *	  Owns the compaction of outbox.positions: the other of two tables is emptied, and the
 *	  rows that count are written to it.
 *
 * The full table stays as it is until the next time.  A snapshot from before, like that of
 * a pg_dump which has locked no table yet, sees its rows, and none of the other table.
 */
#include "base/outbox.h"

#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/proc.h"
#include "storage/procarray.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "log/tables.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "server/subscription.h"
#include "store/positions.h"

/*
 * After this many position rows the other table is used, or after ROWS_PER_KEPT times
 * the rows that the last change left there, if that is more.  With many endpoints a
 * change costs as much as writing their rows.
 *
 * To empty a table, an exclusive lock is needed, also on standbys.  There it
 * cancels sessions with a lock on the positions, pg_dump for example.  So where there may
 * be a standby, it is done every COMPACT_EVERY µs at most, and where one says by
 * hot_standby_feedback that it is read, only after MANY_POSITION_ROWS.  Elsewhere the full
 * table stays for COMPACT_APART µs at least.  Nothing reads all rows, so many cost no more
 * than their place, and a longer way to each in the index.
 *
 * The numbers are smaller in a library with crash points, so that a test reaches them soon.
 */
#define ROWS_PER_KEPT 8
#ifdef OUTBOX_CRASH_POINTS
#define MAX_POSITION_ROWS 200
#define COMPACT_EVERY 0
#define COMPACT_APART 0
#else
#define MAX_POSITION_ROWS 20000
#define COMPACT_EVERY (10 * 60 * USECS_PER_SEC)
#define COMPACT_APART (60 * USECS_PER_SEC)
#endif
#define MANY_POSITION_ROWS (100 * MAX_POSITION_ROWS)

/*
 * µs until the next try when another transaction uses the positions.  Workers do so
 * a few times a second.
 */
#define COMPACT_AGAIN (200 * 1000)

static TimestampTz compact_at;	 /* not before this time */
static TimestampTz compacted_at; /* when this worker did it last */
static int		   compacted;	 /* rows that it left */

#define POSITION_NAMES \
	"number, endpoint_id, shared, generation, read_tick, read, read_seq_low," \
	" reading_tick, reading, reading_seq_low, reading_seq_high, last_seq, pending," \
	" delivered, failed_attempts, settled_at, counters, failing_since, failing_told," \
	" state_since, probes"

/*
 * A statement that writes the rows that count to table $1.  Left out are shared rows that no
 * endpoint follows any more, and the rows of dropped endpoints.  Endpoint 0 has the totals.
 */
#define COPY_POSITIONS \
	OUTBOX_NEWEST_POSITIONS("true") \
	" INSERT INTO outbox.positions SELECT $1, " POSITION_NAMES \
	" FROM newest p WHERE (EXISTS (SELECT 1 FROM outbox.endpoint_settings s" \
	" WHERE s.endpoint_id = p.endpoint_id) OR p.endpoint_id = 0" \
	" OR p.endpoint_id = ANY (ARRAY(SELECT DISTINCT f.shared FROM newest f)))"

/*
 * True if a standby may replay this server's WAL.  '*is_read': it holds xids back here,
 * through a slot or without one.
 */
static bool
may_have_standby(bool *is_read)
{
	TransactionId xmin;
	TransactionId catalog_xmin;
	bool		  may = XLogArchivingActive();

	ProcArrayGetReplicationSlotXmin(&xmin, &catalog_xmin);
	for (int i = 0; i < max_replication_slots; i++)
		may = may || ReplicationSlotCtl->replication_slots[i].in_use;
	for (int i = 0; i < max_wal_senders; i++)
	{
		int			  pid = *(volatile int *) &WalSndCtl->walsnds[i].pid;
		const PGPROC *proc = pid ? BackendPidGetProc(pid) : NULL;

		may = may || pid != 0;
		if (proc && TransactionIdIsValid(proc->xmin))
			xmin = proc->xmin;
	}
	*is_read = TransactionIdIsValid(xmin);
	return may;
}

bool
outbox_positions_want_compaction(TimestampTz now)
{
	uint32 rows = pg_atomic_read_u32(&outbox_db->position_rows);
	bool   is_read;
	bool   standby;

	if (!outbox_serves_database() || now < compact_at ||
		rows <= (uint32) Max(MAX_POSITION_ROWS, ROWS_PER_KEPT * compacted))
		return false;
	compact_at = now + COMPACT_AGAIN; /* to look for standbys again */
	standby = may_have_standby(&is_read);
	return (rows > MANY_POSITION_ROWS || !(standby && is_read)) &&
		now - compacted_at >= (standby ? COMPACT_EVERY : COMPACT_APART);
}

/*
 * Reads the tables, because they have the positions of other workers as well.  A worker may
 * learn late which one is in use.  So rows that count may be in the other one, too: they are
 * copied before it is emptied.
 */
bool
outbox_positions_compact(void)
{
	int	   was = (int) pg_atomic_read_u32(&outbox_db->positions_piece);
	int	   other = 1 - was;
	uint64 n;

	if (!outbox_txn_begin(true))
		return false;
	if (!outbox_lock_if_free(OUTBOX_TABLE_POSITIONS_0, OUTBOX_TABLE_POSITIONS_1,
							 AccessExclusiveLock))
	{
		/* Another transaction reads or writes the positions, so try later. */
		compact_at = GetCurrentTimestamp() + COMPACT_AGAIN;
		outbox_txn_abort();
		return false;
	}
	outbox_query(COPY_POSITIONS " AND p.piece = $2 ON CONFLICT DO NOTHING", arg_int2(was),
				 arg_int2(other));
	outbox_empty_table(outbox_table_oid(OUTBOX_TABLE_POSITIONS_0 + other));
	OUTBOX_CRASH_POINT("compact.truncated");
	n = outbox_query(COPY_POSITIONS, arg_int2(other));
	OUTBOX_CRASH_POINT("compact.written");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("compact.committed");

	pg_atomic_write_u32(&outbox_db->positions_piece, (uint32) other);
	pg_atomic_write_u32(&outbox_db->position_rows, (uint32) n);
	compacted = (int) n;
	compacted_at = GetCurrentTimestamp();
	return true;
}
