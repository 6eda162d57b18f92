/*
 * event_number.c
 *	  Owns the numbers of events.  Each is higher than all that were given out before,
 *	  also if the sequence is set back.
 *
 * An event with a number that was read before would never be read.  setval() sets the
 * sequence back, and so does ALTER SUBSCRIPTION … REFRESH SEQUENCES.  So the highest
 * number that was drawn, or that a tick has, is in shared memory.  A session looks at it
 * before it draws.  If the sequence then returns no higher one, the session raises the
 * sequence and draws again.  After a start of the server the highest number comes from the
 * tables.
 */
#include "base/outbox.h"

#include "access/relation.h"
#include "access/xact.h"
#include "commands/sequence.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/table_rows.h"
#include "base/version.h"
#include "log/event_number.h"
#include "log/tables.h"
#include "log/event_stamp.h"
#include "server/shmem.h"
#include "server/wakeup.h"

/* The numbers that a transaction drew for direct INSERTs. */
static TransactionId drawn_by;
static int64		 first_drawn;
static int64		 last_drawn;

/* The database's numbers, or this session's if the library was not preloaded. */
static OutboxNumbers *
numbers(void)
{
	static OutboxNumbers own;
	OutboxDatabase		*db = outbox_database_slot(MyDatabaseId, false);

	return db ? &db->numbers : &own;
}

static bool
is_known(OutboxNumbers *n)
{
	bool known = pg_atomic_read_u32(&n->sequence) == outbox_log_tables()->seq;

	/* 'highest' is read after it.  It was written before it. */
	pg_read_barrier();
	return known;
}

/*
 * The log may be empty, so stored ticks and positions count, too, and the subscriptions
 * that a seek wrote.  The snapshot is the latest: the transaction's may be older than
 * the newest event.
 */
static int64
read_highest(void)
{
	static const char *sql = OUTBOX_NEWEST_POSITIONS(
		"true") " SELECT GREATEST("
				"(SELECT pg_catalog.max(seq) FROM outbox.events),"
				" (SELECT seq_high FROM outbox.ticks ORDER BY tick DESC LIMIT 1),"
				" (SELECT pg_catalog.max(GREATEST(read_seq_low, last_seq)) FROM newest),"
				" (SELECT pg_catalog.max(last_seq) FROM outbox.subscriptions), 0)";
	SPIPlanPtr plan;
	int64	   highest;

	SPI_connect();
	plan = SPI_prepare(sql, 0, NULL);
	if (plan == NULL ||
		SPI_execute_snapshot(plan, NULL, NULL, GetLatestSnapshot(), InvalidSnapshot, true,
							 false, 1) != SPI_OK_SELECT)
		elog(ERROR, "\"%s\" failed: %s", sql, SPI_result_code_string(SPI_result));
	outbox_read_row(0, into_int8(&highest));
	SPI_finish();
	return highest;
}

void
outbox_number_load(void)
{
	OutboxNumbers *n = numbers();
	Oid			   sequence = outbox_log_tables()->seq;
	OutboxCaller   caller;
	int64		   highest;

	if (is_known(n))
		return;

	caller = outbox_become_log_owner();
	highest = read_highest();
	outbox_become_caller(caller);

	/* Another log of the database, which was dropped, had other numbers. */
	if (outbox_shared)
		LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&n->sequence) == sequence)
		outbox_raise(&n->highest, (uint64) highest);
	else
		pg_atomic_write_u64(&n->highest, (uint64) highest);
	pg_write_barrier();
	pg_atomic_write_u32(&n->sequence, sequence);
	if (outbox_shared)
		LWLockRelease(outbox_shared->lock);
}

/*
 * The sequence was set back.  Under the lock, one session raises it above every number
 * that was drawn.  Each other session may have drawn one that it has not noted yet.
 */
static int64
draw_again(OutboxNumbers *n, Oid sequence)
{
	uint64 before;
	int64  seq;

	LockRelationOid(sequence, ShareUpdateExclusiveLock);
	before = pg_atomic_read_u64(&n->highest);
	seq = nextval_internal(sequence, false);
	if (seq <= (int64) before)
	{
		OutboxCaller caller = outbox_become_log_owner();

		DirectFunctionCall2(setval_oid, ObjectIdGetDatum(sequence),
							Int64GetDatum(
								Min((int64) before, PG_INT64_MAX - MaxBackends) +
								MaxBackends));
		outbox_become_caller(caller);
		seq = nextval_internal(sequence, false);
		ereport(
			LOG,
			(errmsg("the sequence outbox.events_seq had been set back below " INT64_FORMAT
					", and was raised to " INT64_FORMAT,
					(int64) before, seq)));
	}
	outbox_raise(&n->highest, (uint64) seq);
	UnlockRelationOid(sequence, ShareUpdateExclusiveLock);
	return seq;
}

/*
 * The xid comes first (see emit.c).  That is so for a direct INSERT, too, which comes
 * here through the column default.
 */
int64
outbox_number_draw(void)
{
	OutboxNumbers *n = numbers();
	Oid			   sequence = outbox_log_tables()->seq;
	uint64		   before;
	int64		   seq;

	(void) GetTopTransactionId();
	if (!is_known(n))
		outbox_number_load();
	before = pg_atomic_read_u64(&n->highest);
	seq = nextval_internal(sequence, false);
	if (seq > (int64) before)
		outbox_raise(&n->highest, (uint64) seq);
	else
		seq = draw_again(n, sequence);
	outbox_mark(OUTBOX_MARK_EMITTED);
	return seq;
}

int64
outbox_number_highest(Oid sequence)
{
	LOCAL_FCINFO(fcinfo, 1);
	Datum value;
	int64 highest;

	if (!is_known(numbers()))
		outbox_number_load();
	highest = (int64) pg_atomic_read_u64(&numbers()->highest);

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = ObjectIdGetDatum(sequence);
	fcinfo->args[0].isnull = false;
	value = pg_sequence_last_value(fcinfo);
	if (!fcinfo->isnull)
	{
		highest = Max(DatumGetInt64(value), highest);
		outbox_raise(&numbers()->highest, (uint64) highest);
		return highest;
	}

	/* The sequence was never used.  Or, since 18, the role may not read its value. */
	if (pg_class_aclcheck(sequence, GetUserId(), ACL_SELECT | ACL_USAGE) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for sequence outbox.events_seq"),
				 errhint("GRANT SELECT ON SEQUENCE outbox.events_seq TO \"%s\";",
						 GetUserNameFromId(GetUserId(), false))));
	return highest;
}

OUTBOX_FUNCTION(outbox_column_seq_1_0, 0)
{
	const Oid *sequence = &outbox_log_tables()->seq;
	int64	   seq;

	/* Called by hand, this call may be the first that waits for the lock. */
	relation_close(outbox_log_table_open(sequence, RowExclusiveLock), NoLock);
	seq = outbox_number_draw();
	if (drawn_by != GetTopTransactionIdIfAny())
	{
		drawn_by = GetTopTransactionIdIfAny();
		first_drawn = seq;
	}
	last_drawn = seq;
	PG_RETURN_INT64(seq);
}

bool
outbox_number_is_new(int64 seq)
{
	return TransactionIdIsValid(drawn_by) && drawn_by == GetTopTransactionIdIfAny() &&
		seq >= first_drawn && seq <= last_drawn;
}
