/*
 * scheduled.c
 *	  Owns outbox.scheduled: moves its events into the log when they are due.
 *
 * emit() writes the rows, and lowers outbox_db->due_at at commit to the earliest of them.  So
 * the table is read only when something is due, however many events wait and however
 * many are added.  Rows that no commit announces are found by a read every
 * outbox.wakeup_interval.  Such are the rows of a restore, and rows that failed and
 * are due for another attempt.
 */
#include "base/outbox.h"

#include "access/detoast.h"
#include "catalog/pg_collation.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/fmgrprotos.h"

#include "base/compat.h"
#include "base/crash_point.h"
#include "base/query.h"
#include "base/settings.h"
#include "base/version.h"
#include "emit/emit.h"
#include "emit/scheduled.h"
#include "log/event_stamp.h"
#include "log/log_scan.h"
#include "log/step.h"
#include "log/transaction.h"

/* The limits of one transaction, because requests wait meanwhile. */
#define BATCH_ROWS 500
#define BATCH_BYTES (2 * 1024 * 1024)

/*
 * After a read that nothing announced, the next one comes at the earliest after this
 * many times the read's duration.
 */
#define READ_REST_FACTOR 100

/* µs that it waits at most where the read has passed over rows that were locked. */
#define LOCKED_REST_MAX (10 * USECS_PER_SEC)

/* A place among the rows, which are in the order of their times. */
typedef struct Place
{
	TimestampTz time;
	pg_uuid_t	id;
} Place;

/*
 * The first row that is left.  The rows before it have been moved, or wait for a look at
 * the whole table.  The index may still lead to them while an old snapshot could see them,
 * so the scan begins here.
 */
static Place first;

static TimestampTz look_at;	  /* when the table is read even if nothing is announced */
static TimestampTz rested_at; /* ... and when it may be, if something may have come */
static TimestampTz again_at;  /* a lock was not free: not before */
static bool		   careful;	  /* a batch failed: each row on its own */
static Datum	   epochs;	  /* int8[]: the epochs of this log */

/*
 * The scheduled events of a tenant are locked against the step that moves them, by one
 * of so many locks.  A hash of the tenant's name chooses it.  outbox.forget() holds one
 * to the end of its transaction, and must not hold up the events of all tenants.
 */
#define TENANT_LOCKS 64 /* also in FROM_FIRST */

/*
 * Another one makes calls of outbox.forget() commit in the order of their numbers: a worker
 * that has dropped its copies for one call has done so for all calls before it.
 */
#define ORDER_LOCK TENANT_LOCKS

static Datum locked; /* int4[]: locks that were not free when this transaction began */

#define FROM_FIRST \
	" FROM outbox.scheduled s" \
	" WHERE ROW(s.deliver_at, s.id) >= ROW($1, $2) AND s.epoch = ANY ($3)" \
	" AND (s.tenant IS NULL OR NOT pg_catalog.hashtext(s.tenant) & 63 = ANY ($4))" \
	" AND (s.retry_at IS NULL OR s.retry_at <= pg_catalog.now())" \
	" AND NOT EXISTS (SELECT FROM outbox.forgotten f" \
	" WHERE outbox.forgets(f, s.tenant, s.key, s.epoch, s.xid))"
#define IN_ORDER " ORDER BY s.deliver_at, s.id LIMIT "

enum
{
	COL_ID,
	COL_TOPIC,
	COL_TYPE,
	COL_KEY,
	COL_HEADERS,
	COL_PAYLOAD,
	COL_BODY,
	COL_CONTENT_TYPE,
	COL_EXPIRES_AT,
	COL_TENANT,
	COL_DELIVER_AT,
	NCOLUMNS
};

void
outbox_scheduled_init(int64 epoch, bool zero)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	epochs = outbox_int8_array((int64[]){epoch, 0}, zero ? 2 : 1);
	MemoryContextSwitchTo(old);
}

void
outbox_scheduled_begin(void)
{
	look_at = 0;
}

void
outbox_scheduled_failed(void)
{
	careful = true;
	look_at = 0; /* due_at was reset when the failed step took it */
}

TimestampTz
outbox_scheduled_next_time(void)
{
	TimestampTz due = (TimestampTz) pg_atomic_read_u64(&outbox_db->due_at);

	return Max(Min(due, look_at), again_at);
}

static void
set_first(TimestampTz time)
{
	first = (Place){.time = time};
}

static bool
is_before(const Place *a, const Place *b)
{
	return a->time != b->time ? a->time < b->time :
								memcmp(&a->id, &b->id, sizeof(a->id)) < 0;
}

static void
find_first(void)
{
	if (outbox_plan_run("SELECT s.deliver_at, s.id" FROM_FIRST IN_ORDER "1",
						arg_time(first.time),
						arg_datum(UUIDOID, UUIDPGetDatum(&first.id)),
						arg_datum(INT8ARRAYOID, epochs),
						arg_datum(INT4ARRAYOID, locked)) == 0)
		set_first(DT_NOEND);
	else
		outbox_read_row(0, into_time(&first.time), into_uuid(&first.id));
}

/* Appends one row to the log.  Returns the size of its payload or body in bytes. */
static Size
append(HeapTuple tuple, TupleDesc desc, Datum *id)
{
	Datum		   values[NCOLUMNS];
	bool		   nulls[NCOLUMNS];
	OutboxNewEvent e = {0};
	Size		   size = 0;

	heap_deform_tuple(tuple, desc, values, nulls);
#define COLUMN(n) (nulls[n] ? NULL : (void *) DatumGetPointer(values[n]))
	e.topic = COLUMN(COL_TOPIC);
	e.type = COLUMN(COL_TYPE);
	e.key = COLUMN(COL_KEY);
	e.tenant = COLUMN(COL_TENANT);
	e.headers = COLUMN(COL_HEADERS);
	e.payload = COLUMN(COL_PAYLOAD);
	e.body = COLUMN(COL_BODY);
	e.content_type = COLUMN(COL_CONTENT_TYPE);
#undef COLUMN
	e.expires = !nulls[COL_EXPIRES_AT];
	if (e.expires)
		e.expires_at = DatumGetTimestampTz(values[COL_EXPIRES_AT]);
	outbox_append(&e, DatumGetUUIDP(values[COL_ID]));

	*id = values[COL_ID];
	if (e.payload)
		size += toast_raw_datum_size(values[COL_PAYLOAD]);
	if (e.body)
		size += toast_raw_datum_size(values[COL_BODY]);
	return size;
}

static void
delete_moved(Datum *ids, int n)
{
	(void) outbox_plan_run("DELETE FROM outbox.scheduled s"
						   " WHERE s.id = ANY ($1)",
						   arg_datum(UUIDARRAYOID, outbox_array(ids, n, UUIDOID)));
}

/* One row of a batch. */
typedef struct Moving
{
	HeapTuple tuple;
	TupleDesc desc;
	Datum	  id;
	Size	  size;
} Moving;

static void
append_one(void *arg)
{
	Moving *m = arg;

	m->size = append(m->tuple, m->desc, &m->id);
	if (careful)
		delete_moved(&m->id, 1);
}

/* The event cannot enter the log.  Its row stays, with the reason. */
static void
set_aside(Datum id, const char *error, bool locked)
{
	(void) outbox_plan_run("UPDATE outbox.scheduled" OUTBOX_SET_ASIDE " WHERE id = $1",
						   arg_datum(UUIDOID, id), arg_text(error),
						   arg_int4(OUTBOX_SET_ASIDE_SECS(locked)));
}

/*
 * Sets the row aside if the log has another event with its id.  Any role that may emit
 * can give an event that id.  A transaction that has done so and is still open is not
 * waited for.
 */
static bool
may_append(const pg_uuid_t *id)
{
	switch (outbox_scan_id(&outbox_log_tables()->pieces[outbox_current_piece()], id))
	{
		case OUTBOX_ID_FREE:
			break;
		case OUTBOX_ID_TAKEN:
			set_aside(UUIDPGetDatum(id), "the log has another event with this id", false);
			return false;
		case OUTBOX_ID_IN_DOUBT:
			set_aside(UUIDPGetDatum(id),
					  "a transaction that is open has emitted another event with this id",
					  true);
			return false;
	}
	return true;
}

static bool
move_one(Moving *m)
{
	bool			isnull;
	OutboxStepError failure;

	m->id = SPI_getbinval(m->tuple, m->desc, COL_ID + 1, &isnull);
	if (!may_append(DatumGetUUIDP(m->id)))
		return false;
	if (!careful)
		append_one(m);
	else if (!outbox_step_try_part(append_one, m, &failure))
	{
		set_aside(m->id, failure.message, outbox_step_was_locked(&failure));
		return false;
	}
	return true;
}

/*
 * Moves a batch, in the order of the times.  Rows that another transaction has locked,
 * to cancel them, are left for later.  Returns the place up to which no others are left.
 */
static Place
move_due(TimestampTz now)
{
	SPITupleTable *rows;
	Place		   end = {.time = now};
	Datum		  *ids;
	Size		   bytes = 0;
	int			   n = 0;
	int			   done = 0;

	if (outbox_plan_run(
			"SELECT s.id, s.topic, s.type, s.key, s.headers, s.payload, s.body,"
			" s.content_type, s.expires_at, s.tenant, s.deliver_at" FROM_FIRST
			" AND s.deliver_at <= $5" IN_ORDER CppAsString2(
				BATCH_ROWS) " FOR UPDATE SKIP LOCKED",
			arg_time(first.time), arg_datum(UUIDOID, UUIDPGetDatum(&first.id)),
			arg_datum(INT8ARRAYOID, epochs), arg_datum(INT4ARRAYOID, locked),
			arg_time(now)) == 0)
		return end;
	rows = SPI_tuptable;
	ids = palloc(sizeof(Datum) * rows->numvals);
	while (done < (int) rows->numvals && bytes < BATCH_BYTES)
	{
		Moving m = {.tuple = rows->vals[done++], .desc = rows->tupdesc};

		if (!move_one(&m))
			continue;
		bytes += m.size;
		ids[n++] = m.id;
	}
	if (done == BATCH_ROWS || done < (int) rows->numvals)
	{
		HeapTuple last = rows->vals[done - 1];
		bool	  isnull;

		end.time = DatumGetTimestampTz(
			SPI_getbinval(last, rows->tupdesc, COL_DELIVER_AT + 1, &isnull));
		end.id = *DatumGetUUIDP(SPI_getbinval(last, rows->tupdesc, COL_ID + 1, &isnull));
	}
	OUTBOX_CRASH_POINT("schedule.appended");
	if (!careful)
		delete_moved(ids, n);
	careful = careful && n < done;
	return end;
}

/*
 * Moves a batch, and finds the first row that is left.  There may be many that are locked,
 * for as long as the other transaction is open.  So they are passed over, and found by the
 * next look.  Returns true if there are any.
 */
static bool
move_batch(TimestampTz now)
{
	Place end = move_due(now);

	OUTBOX_CRASH_POINT("schedule.moved");
	find_first();
	if (!is_before(&first, &end))
		return false;
	first = end;
	find_first();
	return true;
}

static bool
lock_bucket(Oid requests, int bucket, LOCKMODE mode, bool wait)
{
	LOCKTAG tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, requests, bucket, 0);
	return LockAcquire(&tag, mode, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* outbox.lock_tenant() */
OUTBOX_FUNCTION(outbox_lock_tenant_1_0, 2)
{
	int32 hash = DatumGetInt32(
		DirectFunctionCall1Coll(hashtext, C_COLLATION_OID, PG_GETARG_DATUM(0)));

	(void) lock_bucket(PG_GETARG_OID(1), ORDER_LOCK, ExclusiveLock, true);
	(void) lock_bucket(PG_GETARG_OID(1), hash & (TENANT_LOCKS - 1), ExclusiveLock, true);
	PG_RETURN_VOID();
}

/*
 * An event that enters the log gets another xid.  outbox.forget() needs to know whether it
 * has.  So its tenant is locked before the snapshot that finds the event is taken.
 */
static bool
begin(void)
{
	Datum busy[TENANT_LOCKS];
	int	  n = 0;

	if (!outbox_txn_begin_to_emit())
		return false;
	if (!outbox_lock_if_free(OUTBOX_TABLE_SCHEDULED, OUTBOX_TABLE_SCHEDULED,
							 RowExclusiveLock))
	{
		outbox_txn_abort();
		return false;
	}
	for (int i = 0; i < TENANT_LOCKS; i++)
		if (!lock_bucket(outbox_table_oid(OUTBOX_TABLE_FORGOTTEN), i, ShareLock, false))
			busy[n++] = Int32GetDatum(i);
	locked = outbox_array(busy, n, INT4OID);
	return true;
}

void
outbox_scheduled_step(void *arg)
{
	TimestampTz now = *(TimestampTz *) arg;
	TimestampTz due;
	TimestampTz begun;
	bool		look;
	bool		passed_over = false;

	if (!begin())
	{
		again_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}

	/*
	 * Reset before the statement's snapshot.  A transaction that commits after that
	 * lowers it again.
	 */
	due = (TimestampTz) pg_atomic_exchange_u64(&outbox_db->due_at, DT_NOEND);
	if (due == DT_NOBEGIN)
	{
		/* Of which time is not known, and a look may pass over many dead rows. */
		look_at = Min(look_at, rested_at);
		due = DT_NOEND;
	}
	look = now >= look_at;
	if (look)
		set_first(DT_NOBEGIN);
	else if (due <= first.time)
		set_first(due);
	begun = GetCurrentTimestamp();
	find_first();
	if (look)
		rested_at = outbox_step_rest(begun, READ_REST_FACTOR);
	if (first.time <= now)
		passed_over = move_batch(now);
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("schedule.committed");

	outbox_lower_due_at(outbox_db, first.time);
	if (look)
		look_at = Max(rested_at,
					  GetCurrentTimestamp() + outbox_wakeup_interval * INT64CONST(1000));
	if (passed_over)
	{
		rested_at = Min(outbox_step_rest(begun, READ_REST_FACTOR), now + LOCKED_REST_MAX);
		rested_at = Max(rested_at, now + OUTBOX_RETRY_LOCKS_AFTER);
		look_at = look ? rested_at : Min(look_at, rested_at);
	}
}
