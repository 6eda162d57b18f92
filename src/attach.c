/*
 * attach.c
 *	  Owns the worker's side of its slot: how it comes, what it says of itself,
 *	  how it goes, and how that is shown.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "launcher.h"
#include "version.h"

/* Which start of the slot this process is. */
static uint64 my_generation;

/* Under the lock: is the slot still this process's? */
static bool
is_mine(const OutboxDatabase *db)
{
	return db->generation == my_generation && db->pid == MyProcPid;
}

/*
 * Leaves the slot, and leaves word for the launcher.  Somebody who wants the
 * database for himself sends SIGTERM, and that is not a failure whatever the
 * exit code.
 */
static void
leave(int code, Datum arg)
{
	OutboxDatabase *db = (OutboxDatabase *) DatumGetPointer(arg);

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (is_mine(db))
	{
		db->pid = 0;
		db->latch = NULL;
		db->state = OUTBOX_WORKER_NONE;
		db->exited = true;
		db->exited_cleanly = code == 0 || db->holds > 0;
		pg_atomic_write_u64(&db->in_flight, 0);
		pg_atomic_write_u64(&db->endpoints, 0);
	}
	LWLockRelease(outbox_shared->lock);
	outbox_launcher_ring();
}

void
outbox_worker_attach(OutboxDatabase *db)
{
	bool		wanted;

	memcpy(&my_generation, MyBgworkerEntry->bgw_extra, sizeof(my_generation));
	on_shmem_exit(leave, PointerGetDatum(db));

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	wanted = db->generation == my_generation && db->holds == 0;
	if (db->generation == my_generation)
	{
		db->pid = MyProcPid;
		db->latch = MyLatch;
		db->started_at = GetCurrentTimestamp();
		pg_atomic_write_u64(&db->last_loop_at, 0);
		pg_atomic_write_u64(&db->delivered, 0);
		pg_atomic_write_u64(&db->unmatched, 0);
	}
	LWLockRelease(outbox_shared->lock);

	if (!wanted)
		proc_exit(0);
}

void
outbox_worker_report(OutboxDatabase *db, OutboxWorkerState state,
					 const char *reason)
{
	bool		discovered = false;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (is_mine(db))
	{
		discovered = !db->has_extension;
		db->has_extension = true;
		db->state = state;
		strlcpy(db->reason, reason != NULL ? reason : "", sizeof(db->reason));
	}
	LWLockRelease(outbox_shared->lock);

	/* The launcher may look into the next database. */
	if (discovered)
		outbox_launcher_ring();
}

void
outbox_worker_no_extension(OutboxDatabase *db)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (is_mine(db))
	{
		db->has_extension = false;
		db->found_none = true;
	}
	LWLockRelease(outbox_shared->lock);
}

static const char *
state_name(OutboxWorkerState state)
{
	switch (state)
	{
		case OUTBOX_WORKER_NONE:
			return "no_worker";
		case OUTBOX_WORKER_STARTING:
			return "starting";
		case OUTBOX_WORKER_RUNNING:
			return "running";
		case OUTBOX_WORKER_DISABLED:
			return "disabled";
		case OUTBOX_WORKER_HELD:
			return "held";
		case OUTBOX_WORKER_VERSION_MISMATCH:
			return "version_mismatch";
	}
	return NULL;
}

#define STATUS_COLUMNS 11

/* The lock is held; what the row points to must outlive it. */
static void
fill_row(const OutboxDatabase *db, char *reason, Datum *values, bool *nulls)
{
	TimestampTz last_loop_at =
		(TimestampTz) pg_atomic_read_u64((pg_atomic_uint64 *) &db->last_loop_at);

	strlcpy(reason, db->reason, sizeof(db->reason));
	memset(nulls, 0, STATUS_COLUMNS * sizeof(bool));
	values[0] = ObjectIdGetDatum(db->dboid);
	values[1] = Int32GetDatum((int32) db->pid);
	nulls[1] = db->pid == 0;
	nulls[3] = reason[0] == '\0';
	values[4] = TimestampTzGetDatum(db->started_at);
	nulls[4] = db->pid == 0;
	values[5] = Int64GetDatum(db->restarts);
	values[6] = TimestampTzGetDatum(last_loop_at);
	nulls[6] = last_loop_at == 0;
	values[7] = Int64GetDatum((int64) pg_atomic_read_u64((pg_atomic_uint64 *) &db->endpoints));
	values[8] = Int64GetDatum((int64) pg_atomic_read_u64((pg_atomic_uint64 *) &db->in_flight));
	values[9] = Int64GetDatum((int64) pg_atomic_read_u64((pg_atomic_uint64 *) &db->delivered));
	values[10] = Int64GetDatum((int64) pg_atomic_read_u64((pg_atomic_uint64 *) &db->unmatched));
}

/*
 * outbox.worker_slots(): a row for each database that has, or may get, a
 * worker.  None when the library is not preloaded.
 */
OUTBOX_FUNCTION(outbox_worker_status_1_0, 0)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	outbox_materialize(fcinfo);
	outbox_expect_columns(fcinfo, rsinfo->setDesc, STATUS_COLUMNS);
	if (outbox_shared == NULL)
		return (Datum) 0;

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		const OutboxDatabase *db = &outbox_shared->databases[i];
		Datum		values[STATUS_COLUMNS];
		bool		nulls[STATUS_COLUMNS];
		char		reason[sizeof(db->reason)];
		OutboxWorkerState state;
		bool		used;

		LWLockAcquire(outbox_shared->lock, LW_SHARED);
		used = OidIsValid(db->dboid);
		state = db->state;
		if (used)
			fill_row(db, reason, values, nulls);
		LWLockRelease(outbox_shared->lock);
		if (!used)
			continue;

		values[2] = CStringGetTextDatum(state_name(state));
		if (!nulls[3])
			values[3] = CStringGetTextDatum(reason);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
