/*
 * worker_slot.c
 *	  Owns the worker's side of its slot: how a worker attaches, reports and
 *	  leaves, and how the views show it.
 */
#include "base/outbox.h"

#include "funcapi.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "server/shares.h"
#include "server/worker_slot.h"

static uint64 my_generation; /* the number of this process's start */

/* True if the slot is still this process's.  The lock is held. */
static bool
is_mine(void)
{
	return outbox_self->generation == my_generation && outbox_self->pid == MyProcPid;
}

/*
 * Leaves the slot, and reports to the launcher.  A command that needs the database
 * without connections sends SIGTERM.  That is not a failure, whatever the exit code.
 */
static void
leave(int code, Datum arg)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (is_mine())
	{
		outbox_self->pid = 0;
		outbox_self->latch = NULL;
		outbox_self->state = OUTBOX_WORKER_NONE;
		outbox_self->exited = true;
		outbox_self->exited_cleanly = outbox_self->exited_cleanly || code == 0 ||
			outbox_db->holds > 0 || ShutdownRequestPending;
		pg_atomic_write_u64(&outbox_self->in_flight, 0);
		pg_atomic_write_u64(&outbox_self->seen_changes, 0);
		pg_atomic_write_u64(&outbox_self->memory, 0);
		pg_atomic_write_u64(&outbox_self->resident, 0);
		pg_atomic_write_u64(&outbox_self->bound, 0);
		pg_atomic_write_u64(&outbox_self->endpoints, 0);
		outbox_shares_exit(outbox_db, outbox_worker_number);
	}
	LWLockRelease(outbox_shared->lock);
	outbox_launcher_wake();
}

static bool
is_alone(void)
{
	for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
		if (outbox_db->workers[w].pid != 0)
			return false;
	return true;
}

void
outbox_worker_slot_attach(int database, int worker)
{
	bool wanted;

	outbox_db = &outbox_shared->databases[database];
	outbox_self = &outbox_db->workers[worker];
	memcpy(&my_generation, MyBgworkerEntry->bgw_extra, sizeof(my_generation));
	on_shmem_exit(leave, (Datum) 0);

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	wanted = outbox_self->generation == my_generation && outbox_db->holds == 0;
	if (outbox_self->generation == my_generation)
	{
		if (is_alone())
			pg_atomic_write_u64(&outbox_db->unmatched, 0);
		outbox_self->pid = MyProcPid;
		outbox_self->latch = MyLatch;
		outbox_self->started_at = GetCurrentTimestamp();
		outbox_self->waits_for_lock = false;
		pg_atomic_write_u64(&outbox_self->last_loop_at, 0);
		pg_atomic_write_u64(&outbox_self->looked_at, 0);
		pg_atomic_write_u64(&outbox_self->delivered, 0);
	}
	LWLockRelease(outbox_shared->lock);

	if (!wanted)
		proc_exit(0);
}

void
outbox_worker_slot_report(OutboxWorkerState state, const char *reason)
{
	bool discovered = false;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (is_mine())
	{
		/* The launcher may now probe the next database, or start more workers. */
		discovered = !outbox_db->has_extension || outbox_self->state != state;
		outbox_db->has_extension = true;
		outbox_self->state = state;
		outbox_self->rests = OUTBOX_WORKER_NONE;
		strlcpy(outbox_db->reason, reason != NULL ? reason : "",
				sizeof(outbox_db->reason));
	}
	LWLockRelease(outbox_shared->lock);

	if (discovered)
		outbox_launcher_wake();
}

bool
outbox_worker_slot_rest(OutboxWorkerState state, const char *reason, uint64 changed,
						long ms)
{
	bool again;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	again = outbox_self->rests == state && strcmp(outbox_db->reason, reason) == 0;
	LWLockRelease(outbox_shared->lock);
	outbox_worker_slot_report(state, reason);
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (is_mine())
	{
		outbox_self->rests = state;
		outbox_self->rested_at = changed;
		outbox_self->rests_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
	}
	LWLockRelease(outbox_shared->lock);
	return again;
}

bool
outbox_worker_slots_lack(void)
{
	bool lack = false;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
		for (int w = 0; w < outbox_shared->databases[i].nworkers; w++)
		{
			const OutboxWorker *worker = &outbox_shared->databases[i].workers[w];

			lack = lack ||
				(OidIsValid(outbox_shared->databases[i].dboid) && worker->pid == 0 &&
				 worker->absence == OUTBOX_ABSENCE_NO_ROOM);
		}
	LWLockRelease(outbox_shared->lock);
	return lack;
}

/* Only the views read it, so no lock is needed. */
void
outbox_worker_slot_waits_for_lock(bool waits)
{
	outbox_self->waits_for_lock = waits;
}

void
outbox_worker_slot_no_extension(void)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (is_mine())
	{
		outbox_self->found_none = true;
		outbox_self->rests = OUTBOX_WORKER_NONE;
	}
	LWLockRelease(outbox_shared->lock);
}

static const char *const state_names[] = {
	[OUTBOX_WORKER_NONE] = "no_worker",
	[OUTBOX_WORKER_STARTING] = "starting",
	[OUTBOX_WORKER_RUNNING] = "running",
	[OUTBOX_WORKER_STUCK] = "stuck",
	[OUTBOX_WORKER_DISABLED] = "disabled",
	[OUTBOX_WORKER_HELD] = "held",
	[OUTBOX_WORKER_VERSION_MISMATCH] = "version_mismatch",
};

/*
 * Returns the state for views: a process that only looks whether it still rests changes
 * nothing.  A database that got an endpoint while it rested may lack a process.
 */
static OutboxWorkerState
shown_state(const OutboxWorker *worker)
{
	bool rests = worker->rests != OUTBOX_WORKER_NONE &&
		!(worker->rests == OUTBOX_WORKER_RUNNING &&
		  worker->absence == OUTBOX_ABSENCE_NO_ROOM);

	return rests &&
			(worker->state == OUTBOX_WORKER_NONE ||
			 worker->state == OUTBOX_WORKER_STARTING) ?
		worker->rests :
		worker->state;
}

/* Why the worker is not running; empty: there is no reason to show. */
static void
describe(const OutboxDatabase *db, const OutboxWorker *worker, char *reason, size_t size)
{
	reason[0] = '\0';
	if (shown_state(worker) != OUTBOX_WORKER_NONE)
	{
		if (shown_state(worker) == OUTBOX_WORKER_STARTING && worker->waits_for_lock)
			strlcpy(
				reason,
				"the worker is starting, and waits for a lock on a table of outbox that another session holds",
				size);
		else if (shown_state(worker) != OUTBOX_WORKER_RUNNING &&
				 shown_state(worker) != OUTBOX_WORKER_STARTING)
			strlcpy(reason, db->reason, size);
		return;
	}
	switch (worker->absence)
	{
		case OUTBOX_ABSENCE_NONE:
			break;
		case OUTBOX_ABSENCE_FAILED:
			snprintf(
				reason, size,
				"the worker ended with an error, see the server log; it is started again after %d s",
				worker->delay);
			break;
		case OUTBOX_ABSENCE_NO_ROOM:
			strlcpy(reason, "no free background worker slot: raise max_worker_processes",
					size);
			break;
		case OUTBOX_ABSENCE_WANTED:
			strlcpy(reason, "a command wants the database for itself", size);
			break;
	}
}

#define STATUS_COLUMNS 15

/* µs after which a worker that does not go round is shown as stuck. */
#define STUCK_AFTER (9 * USECS_PER_SEC)

/* µs for which the published figures of a worker count as current. */
#define COUNTS_WITHIN (1 * USECS_PER_SEC)

static int64
read_u64(const pg_atomic_uint64 *number)
{
	return (int64) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, number));
}

/* The µs since a worker did something, beyond the time that it may sleep. */
static int64
late_by(TimestampTz at)
{
	return GetCurrentTimestamp() - at - outbox_wakeup_interval * INT64CONST(1000);
}

bool
outbox_worker_counts(int32 endpoint_id, int pid)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);
	int				owner = db ? db->owner[outbox_share_of(endpoint_id)] : 0;

	return owner > 0 && db->workers[owner - 1].pid == pid &&
		late_by(read_u64(&db->workers[owner - 1].looked_at)) <= COUNTS_WITHIN;
}

static void
put_worker(OutboxRows *row, const OutboxDatabase *db, int w)
{
	const OutboxWorker *worker = &db->workers[w];
	bool				runs = worker->pid != 0;
	TimestampTz			last_loop_at = (TimestampTz) read_u64(&worker->last_loop_at);
	int64				resident = read_u64(&worker->resident);
	int64				bound = read_u64(&worker->bound);
	OutboxWorkerState	state = shown_state(worker);
	char				reason[sizeof(db->reason)];

	describe(db, worker, reason, sizeof(reason));
	if (worker->state == OUTBOX_WORKER_RUNNING && last_loop_at != 0 &&
		late_by(last_loop_at) >= STUCK_AFTER)
	{
		state = OUTBOX_WORKER_STUCK;
		snprintf(
			reason, sizeof(reason),
			"the worker does nothing since %s: it was stopped, or waits for something that does not come",
			timestamptz_to_str(last_loop_at));
	}
	put_value(row, ObjectIdGetDatum(db->dboid));
	put_value(row, Int32GetDatum(w + 1));
	put_if(row, runs, Int32GetDatum((int32) worker->pid));
	put_text(row, state_names[state]);
	put_text(row, reason[0] ? reason : NULL);
	put_if(row, runs, TimestampTzGetDatum(worker->started_at));
	put_value(row, Int64GetDatum(worker->restarts));
	put_if(row, last_loop_at != 0, TimestampTzGetDatum(last_loop_at));
	put_value(row, Int64GetDatum(read_u64(&worker->endpoints)));
	put_value(row, Int64GetDatum(read_u64(&worker->in_flight)));
	put_value(row, Int64GetDatum(read_u64(&worker->delivered)));
	put_value(row, Int64GetDatum(read_u64(&db->unmatched)));
	put_value(row, Int64GetDatum(read_u64(&worker->memory)));
	put_if(row, resident != 0, Int64GetDatum(resident));
	put_if(row, bound != 0, Int64GetDatum(bound));
}

/*
 * A database that has no slot still gets a row, with the reason: the launcher has not
 * probed it yet, or all slots are in use.
 */
static void
put_unknown(OutboxRows *row, int nslots)
{
	put_value(row, ObjectIdGetDatum(MyDatabaseId));
	put_value(row, Int32GetDatum(1));
	put_null(row);
	put_text(row, state_names[OUTBOX_WORKER_NONE]);
	put_text(
		row,
		nslots < OUTBOX_MAX_DATABASES ?
			"no worker was started for this database yet" :
			psprintf(
				"one server serves %d databases, and so many others have the extension, or are being looked into",
				OUTBOX_MAX_DATABASES));
	while (row->n < STATUS_COLUMNS)
		put_null(row);
}

/*
 * outbox.worker_slots(): a row for each worker that a database has or should have.  A
 * database that may get workers has a row for the first one.  The session's database
 * always has a row.  No rows if the library is not preloaded.
 */
OUTBOX_FUNCTION(outbox_worker_status_1_0, 0)
{
	/* They are filled under the lock, and stored after it. */
	OutboxRows *rows = palloc0(sizeof(OutboxRows) * OUTBOX_MAX_WORKERS);
	bool		ours = false;
	int			nslots = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (outbox_shared == NULL)
		return (Datum) 0;

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		const OutboxDatabase *db = &outbox_shared->databases[i];
		int					  n = 0;

		LWLockAcquire(outbox_shared->lock, LW_SHARED);
		for (int w = 0; OidIsValid(db->dboid) && w < Max(db->nworkers, 1); w++)
			if (w == 0 || db->workers[w].state != OUTBOX_WORKER_NONE ||
				db->workers[w].absence != OUTBOX_ABSENCE_NONE)
				put_worker(&rows[n++], db, w);
		nslots += OidIsValid(db->dboid);
		ours = ours || db->dboid == MyDatabaseId;
		LWLockRelease(outbox_shared->lock);
		for (int w = 0; w < n; w++)
			outbox_add_row(fcinfo, &rows[w]);
	}
	if (!ours)
	{
		put_unknown(&rows[0], nslots);
		outbox_add_row(fcinfo, &rows[0]);
	}
	return (Datum) 0;
}
