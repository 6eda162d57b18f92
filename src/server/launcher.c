/*
 * launcher.c
 *	  Owns the decision how many workers each database has.
 *
 * Whether a database has the extension can only be seen by a process that is connected to
 * it.  So each database is probed once: its first worker starts and reports whether it
 * found the extension.  The launcher remembers the result until it is woken to probe
 * again.  The postmaster never restarts workers.  All starts are made here, and their
 * rate is limited here.
 */
#include "base/outbox.h"

#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/wait_event.h"

#include "base/settings.h"
#include "server/database_list.h"
#include "server/launcher.h"
#include "server/shares.h"
#include "server/worker_processes.h"

#define NO_ROOM_DELAY 1000 /* ms until the next attempt to get a process */

/*
 * Number of databases that are probed at the same time.  A server with a hundred
 * databases must not need a hundred processes to find the three that have the extension.
 * A probe that has lasted more than PROBE_PATIENCE (ms) is not counted, so a few slow
 * probes do not delay the others.
 */
#define MAX_PROBES 2
#define PROBE_PATIENCE 10000

#define LAUNCHER_RESTART 5 /* seconds */

typedef enum Action
{
	NOTHING,
	SERVE, /* it may have workers */
	STOP,  /* no worker may run there */
	FREE
} Action;

static int		   first_slot = 0;	  /* index of the database that is served first */
static TimestampTz no_room_until = 0; /* no process was free; wait until then */
static TimestampTz last_round_at = 0;

void
outbox_launcher_register(void)
{
	BackgroundWorker worker = outbox_background_worker("launcher", LAUNCHER_RESTART);

	/* pg_upgrade moves the log.  No process may read it meanwhile. */
	if (!IsBinaryUpgrade)
		RegisterBackgroundWorker(&worker);
}

/* The number of databases that are being probed by their first worker. */
static int
count_probes(TimestampTz now)
{
	int n = 0;

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		OutboxDatabase *db = &outbox_shared->databases[i];

		if (OidIsValid(db->dboid) && outbox_has_process(i, 0) && !db->has_extension &&
			!TimestampDifferenceExceeds(db->workers[0].started_at, now, PROBE_PATIENCE))
			n++;
	}
	return n;
}

/* Returns the action that a database needs.  The exclusive lock is held. */
static Action
wanted_action(int i)
{
	OutboxDatabase		*db = &outbox_shared->databases[i];
	OutboxKnownDatabase *database = outbox_database_known(db->dboid);
	bool				 gone = database == NULL && outbox_database_gone(i);
	bool				 unwanted = gone || (database != NULL && !database->servable);

	if (outbox_count_processes(i) > 0)
		return unwanted || db->holds > 0 ? STOP : SERVE;
	if (db->holds > 0)
	{
		db->workers[0].absence = OUTBOX_ABSENCE_WANTED;
		return NOTHING;
	}
	if (unwanted)
	{
		/* If it allows connections again, it may have the extension by then. */
		if (database != NULL)
			database->without = false;
		return FREE;
	}
	if (database == NULL)
		return NOTHING; /* newer than the list of databases */
	if (!db->has_extension && !db->probe)
	{
		if (database->without)
			return FREE;
		db->probe = true;
	}
	return SERVE;
}

/*
 * How many workers the database is to have.  The second and later workers start when the
 * first worker serves shares.  A probe, and a worker that is held, needs only one
 * process.
 */
static int
wanted_workers(const OutboxDatabase *db)
{
	if (db->has_extension)
		for (int w = 0; w < db->nworkers; w++)
			if (db->workers[w].serves)
				return outbox_workers_per_database;
	return 1;
}

/*
 * Workers above the wanted number retire: they end when other workers have taken their
 * shares.
 */
static void
retire_workers(int i)
{
	OutboxDatabase *db = &outbox_shared->databases[i];
	int				wanted = wanted_workers(db);

	for (int w = 0; w < db->nworkers; w++)
	{
		if (w >= wanted && db->workers[w].serves && !db->workers[w].retiring)
			outbox_shares_retire(db, w);
		else if (w >= wanted)
			db->workers[w].absence = OUTBOX_ABSENCE_NONE;
	}
}

/* Notes in the slot that no process was free, for outbox.status. */
static void
note_no_process_left(int i, int w)
{
	OutboxDatabase *db = &outbox_shared->databases[i];

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db->nworkers = Max(db->nworkers, w + 1);
	db->workers[w].absence = OUTBOX_ABSENCE_NO_ROOM;
	LWLockRelease(outbox_shared->lock);
}

/*
 * Decides about a database, and does all that can be done under the lock.  The caller
 * starts workers, and forgets the state that belonged to a database that is freed.
 */
static Action
decide(int i, Oid *freed)
{
	OutboxDatabase *db = &outbox_shared->databases[i];
	Action			action = NOTHING;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (OidIsValid(db->dboid))
		action = wanted_action(i);
	if (action == STOP)
		outbox_stop_workers(i);
	else if (action == SERVE)
		retire_workers(i);
	else if (action == FREE)
	{
		*freed = db->dboid;
		db->dboid = InvalidOid;
	}
	LWLockRelease(outbox_shared->lock);
	return action;
}

/* One pass over all databases. */
typedef struct Round
{
	TimestampTz now;
	TimestampTz wake_at; /* when the launcher must run again; lowered as needed */
	int			probes;
	bool		full;	  /* PostgreSQL has no process left */
	bool		lacks;	  /* … and a worker that does not rest got none */
	bool		unserved; /* … and a database has no worker at all */
	bool		serve[OUTBOX_MAX_DATABASES];
} Round;

/* Starts a worker that does not run, if its time has come and a process is free. */
static void
start_worker_if_due(Round *r, int i, int w)
{
	OutboxDatabase *db = &outbox_shared->databases[i];

	TimestampTz due = db->workers[w].next_start_at;
	TimestampTz until;
	bool		rests = outbox_worker_rests(i, w, &until);

	if (outbox_has_process(i, w))
		return;
	if (rests)
		due = Max(due, until);
	if (due > r->now)
	{
		r->wake_at = Min(r->wake_at, due);
		return;
	}
	if (!db->has_extension && r->probes >= MAX_PROBES)
		return; /* the probe that ends next wakes the launcher */
	if (!r->full && outbox_start_worker(i, w, r->now))
	{
		r->probes += !db->has_extension;
		return;
	}
	if (!r->full)
	{
		r->full = true;
		no_room_until = TimestampTzPlusMilliseconds(r->now, NO_ROOM_DELAY);
	}
	if (rests)
		return; /* it would only look again */

	/* The first database that got no process is served first in the next pass. */
	if (!r->lacks)
		first_slot = i;
	r->lacks = true;
	r->unserved = r->unserved || outbox_count_processes(i) == 0;
	note_no_process_left(i, w);
}

/*
 * If a database has no worker because no process is free, then no database keeps
 * several.  One worker of the database with the most retires, unless one is already
 * retiring.
 */
static void
retire_spare_worker(void)
{
	int richest = -1;
	int most = 1;

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		OutboxDatabase *db = &outbox_shared->databases[i];
		int				n = 0;

		for (int w = 0; w < db->nworkers; w++)
		{
			if (db->workers[w].retiring)
				return;
			n += db->workers[w].serves;
		}
		if (n > most)
		{
			most = n;
			richest = i;
		}
	}
	if (richest < 0)
		return;
	for (int w = OUTBOX_MAX_WORKERS - 1; w > 0; w--)
		if (outbox_shared->databases[richest].workers[w].serves)
		{
			outbox_shares_retire(&outbox_shared->databases[richest], w);
			return;
		}
}

/* Every database gets its first worker before any database gets a second one. */
static void
start_missing_workers(TimestampTz *wake_at)
{
	int	  begin = first_slot;
	bool  freed_any = false;
	Round r = {.now = GetCurrentTimestamp(), .wake_at = *wake_at};

	r.probes = count_probes(r.now);
	r.full = r.now < no_room_until;
	for (int n = 0; n < OUTBOX_MAX_DATABASES; n++)
	{
		int	   i = (begin + n) % OUTBOX_MAX_DATABASES;
		Oid	   freed = InvalidOid;
		Action action = decide(i, &freed);

		r.serve[i] = action == SERVE;
		if (action == FREE)
		{
			outbox_stats_forget_all(freed);
			outbox_holds_forget(freed);
			freed_any = true;
		}
		if (r.serve[i] && outbox_count_processes(i) == 0)
			start_worker_if_due(&r, i, 0);
	}
	if (r.unserved)
	{
		LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
		retire_spare_worker();
		LWLockRelease(outbox_shared->lock);
	}
	for (int n = 0; n < OUTBOX_MAX_DATABASES; n++)
	{
		int i = (begin + n) % OUTBOX_MAX_DATABASES;

		if (r.serve[i] && outbox_count_processes(i) > 0)
			for (int w = 0; w < wanted_workers(&outbox_shared->databases[i]); w++)
				start_worker_if_due(&r, i, w);
	}
	if (r.full)
		r.wake_at = Min(r.wake_at, no_room_until);
	*wake_at = r.wake_at;

	/* A database without a slot may now claim the slot that was freed. */
	if (freed_any && outbox_databases_claim())
		*wake_at = r.now;
}

/*
 * The clock was set back.  Times that are now in the future are lowered, so that no
 * worker waits for them.
 */
static void
forget_times(TimestampTz now)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
		for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
		{
			OutboxWorker *worker = &outbox_shared->databases[i].workers[w];

			worker->started_at = Min(worker->started_at, now);
			worker->next_start_at = Min(worker->next_start_at, now);
		}
	outbox_shared->rescan = true;
	LWLockRelease(outbox_shared->lock);
	no_room_until = 0;
}

/*
 * One pass.  Returns the milliseconds until the next one, unless the launcher is woken
 * before.
 */
static long
run_once(void)
{
	TimestampTz wake_at;
	TimestampTz now;

	if (outbox_reap_processes())
		no_room_until = 0;
	now = GetCurrentTimestamp();
	if (now < last_round_at)
		forget_times(now);
	last_round_at = now;
	wake_at = outbox_databases_update();
	start_missing_workers(&wake_at);
	return Max(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), wake_at), 1);
}

static void
launcher_gone(int code, Datum arg)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (outbox_shared->launcher_pid == MyProcPid)
	{
		outbox_shared->launcher_pid = 0;
		outbox_shared->launcher_latch = NULL;
	}
	LWLockRelease(outbox_shared->lock);
}

static void
become_launcher(void)
{
	on_shmem_exit(launcher_gone, (Datum) 0);
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	outbox_shared->launcher_pid = MyProcPid;
	outbox_shared->launcher_latch = MyLatch;
	LWLockRelease(outbox_shared->lock);
	outbox_take_over_processes();
}

void
outbox_launcher_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	become_launcher();

	for (;;)
	{
		long timeout;

		/*
		 * Ends without a message when SIGTERM arrives between two passes.  With exit
		 * code 0 the postmaster would never start it again.
		 */
		if (ProcDiePending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			outbox_rest_no_longer();
		}
		timeout = run_once();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}
