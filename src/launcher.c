/*
 * launcher.c
 *	  Owns the decision which database has a worker, and when one is started
 *	  again.
 *
 * Whether a database has the extension can only be seen from inside.  So each
 * database is looked into once, by starting its worker, which says what it
 * found; after that the launcher knows, until somebody rings.  Workers are
 * never restarted by the postmaster: all starts are made, and paced, here.
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "databases.h"
#include "launcher.h"

/* All in milliseconds. */
#define NO_ROOM_DELAY 1000		/* until the next try to get a process */
#define CLEAN_EXIT_DELAY 1000	/* after its start, at the least */
#define FIRST_DELAY 1000		/* doubled with each failure in a row */
#define LONGEST_DELAY 30000
#define HEALTHY_AFTER 60000		/* a worker that lived so long has not failed
								 * in a row */

/*
 * Databases looked into at the same time.  A server of a hundred databases
 * must not need a hundred processes to find the three that have the extension.
 * One that takes longer than PROBE_PATIENCE no longer counts, so that a few
 * that hang do not keep the others waiting.
 */
#define MAX_PROBES 2
#define PROBE_PATIENCE 10000

#define LAUNCHER_RESTART 5		/* seconds */

/* The process of a slot, as the postmaster knows it. */
typedef struct Process
{
	BackgroundWorkerHandle *handle; /* NULL: none, or started by a launcher
									 * before us */
	bool		stopping;		/* we told it to leave */
} Process;

typedef enum Action
{
	NOTHING,
	START,
	STOP,
	FREE
} Action;

static Process processes[OUTBOX_MAX_DATABASES];
static int	first_slot = 0;		/* who is considered first: takes turns */
static TimestampTz no_room_until = 0;	/* PostgreSQL had no process left */

void
outbox_launcher_register(void)
{
	BackgroundWorker worker = {0};

	/* pg_upgrade moves the log; nobody may read it meanwhile. */
	if (IsBinaryUpgrade)
		return;

	/* On a standby this is the moment of its promotion. */
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_restart_time = LAUNCHER_RESTART;
	strlcpy(worker.bgw_library_name, "outbox", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "outbox_launcher_main", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "outbox launcher", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "outbox launcher", sizeof(worker.bgw_type));
	RegisterBackgroundWorker(&worker);
}

static bool
has_process(int i)
{
	OutboxDatabase *db = &outbox_shared->databases[i];

	return processes[i].handle != NULL || db->pid != 0 || db->exited;
}

/*
 * Sets when the database gets its next worker, after one is gone.  The lock is
 * held.
 */
static void
pace(OutboxDatabase *db, bool clean, TimestampTz now)
{
	int			delay;

	if (clean)
	{
		db->next_start_at = TimestampTzPlusMilliseconds(db->started_at, CLEAN_EXIT_DELAY);
		return;
	}
	if (TimestampDifferenceExceeds(db->started_at, now, HEALTHY_AFTER))
		db->failures = 0;
	delay = db->failures == 0 ? 0 :
		Min(FIRST_DELAY << Min(db->failures - 1, 10), LONGEST_DELAY);
	db->failures++;
	db->restarts++;
	db->next_start_at = TimestampTzPlusMilliseconds(now, delay);
	snprintf(db->reason, sizeof(db->reason),
			 "the worker ended with an error, see the server log; it is started again after %d s",
			 delay / 1000);
}

static void
note_exit(int i, TimestampTz now)
{
	OutboxDatabase *db = &outbox_shared->databases[i];
	Process    *process = &processes[i];
	OutboxKnownDatabase *database;
	bool		asked;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	asked = process->stopping || db->holds > 0;
	db->state = OUTBOX_WORKER_NONE;
	db->pid = 0;
	db->latch = NULL;
	db->reason[0] = '\0';
	if (asked)
		db->next_start_at = now;
	else
		pace(db, db->exited_cleanly, now);
	database = outbox_database_known(db->dboid);
	if (db->found_none && !db->probe && database != NULL)
		database->without = true;
	else if (!db->has_extension)
		db->probe = true;
	db->exited = false;
	LWLockRelease(outbox_shared->lock);

	if (process->handle != NULL)
		pfree(process->handle);
	process->handle = NULL;
	process->stopping = false;
	no_room_until = 0;
}

/*
 * Notes who is gone.  A process of ours is gone when the postmaster says so,
 * which includes one that never came to attach itself; one that a launcher
 * before us had started is gone when it says so itself.
 */
static void
reap(void)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		BackgroundWorkerHandle *handle = processes[i].handle;
		pid_t		pid;

		if (handle != NULL ? GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED :
			outbox_shared->databases[i].exited)
			note_exit(i, now);
	}
}

/*
 * A launcher that ended leaves workers behind, which go on.  What it had only
 * begun to start is not waited for: when it attaches, it finds that its
 * generation is over.
 */
static void
take_over(void)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		OutboxDatabase *db = &outbox_shared->databases[i];

		if (!OidIsValid(db->dboid) || has_process(i))
			continue;
		db->generation++;
		db->state = OUTBOX_WORKER_NONE;
		if (!db->has_extension)
			db->probe = true;
	}
	LWLockRelease(outbox_shared->lock);
}

/* Databases that are being looked into. */
static int
count_probes(TimestampTz now)
{
	int			n = 0;

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		OutboxDatabase *db = &outbox_shared->databases[i];

		if (OidIsValid(db->dboid) && has_process(i) && !db->has_extension &&
			!TimestampDifferenceExceeds(db->started_at, now, PROBE_PATIENCE))
			n++;
	}
	return n;
}

/*
 * What is to be done about a slot.  '*wake_at' is brought forward when it is a
 * matter of time only.  The exclusive lock is held.
 */
static Action
judge(int i, TimestampTz now, int probes, TimestampTz *wake_at)
{
	OutboxDatabase *db = &outbox_shared->databases[i];
	OutboxKnownDatabase *database = outbox_database_known(db->dboid);
	bool		gone = database == NULL && outbox_database_gone(i);
	bool		unwanted = gone || (database != NULL && !database->servable);

	if (has_process(i))
		return (unwanted || db->holds > 0) && !processes[i].stopping ? STOP : NOTHING;
	if (db->holds > 0)
	{
		strlcpy(db->reason, "a command wants the database for itself", sizeof(db->reason));
		return NOTHING;
	}
	if (unwanted)
	{
		/* It may come back, with an extension that nobody has seen. */
		if (database != NULL)
			database->without = false;
		return FREE;
	}
	if (database == NULL)
		return NOTHING;			/* newer than the last scan */
	if (!db->has_extension && !db->probe)
	{
		if (database->without)
			return FREE;
		db->probe = true;
	}
	if (db->next_start_at > now)
	{
		*wake_at = Min(*wake_at, db->next_start_at);
		return NOTHING;
	}
	if (!db->has_extension && probes >= MAX_PROBES)
		return NOTHING;			/* whoever finishes wakes us */
	return START;
}

static void
stop_worker(int i)
{
	OutboxDatabase *db = &outbox_shared->databases[i];

	processes[i].stopping = true;
	if (processes[i].handle != NULL)
		TerminateBackgroundWorker(processes[i].handle);
	else if (db->pid != 0)
		kill(db->pid, SIGTERM);
}

static bool
launch(int i, const OutboxDatabase *db, const char *datname)
{
	BackgroundWorker worker = {0};

	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = Int32GetDatum(i);
	strlcpy(worker.bgw_library_name, "outbox", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "outbox_worker_main", sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "outbox worker for %s", datname);
	strlcpy(worker.bgw_type, "outbox worker", sizeof(worker.bgw_type));
	memcpy(worker.bgw_extra, &db->generation, sizeof(db->generation));
	return RegisterDynamicBackgroundWorker(&worker, &processes[i].handle);
}

/*
 * Marked as starting before it is asked for: a command that wants the database
 * for itself, and comes in between, has to wait for it.  Only we start
 * workers, and only we free slots, so the slot stays what it is meanwhile.
 */
static bool
start_worker(int i, TimestampTz now)
{
	OutboxDatabase *db = &outbox_shared->databases[i];
	OutboxKnownDatabase *database = outbox_database_known(db->dboid);

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db->generation++;
	db->state = OUTBOX_WORKER_STARTING;
	db->started_at = now;
	db->reason[0] = '\0';
	db->probe = false;
	db->exited_cleanly = false;
	db->found_none = false;
	LWLockRelease(outbox_shared->lock);

	if (launch(i, db, NameStr(database->name)))
		return true;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db->state = OUTBOX_WORKER_NONE;
	if (!db->has_extension)
		db->probe = true;
	LWLockRelease(outbox_shared->lock);
	processes[i].handle = NULL;
	return false;
}

/* Said in the slot, for outbox.status. */
static void
put_off(int i)
{
	OutboxDatabase *db = &outbox_shared->databases[i];

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	strlcpy(db->reason, "no free background worker slot: raise max_worker_processes",
			sizeof(db->reason));
	LWLockRelease(outbox_shared->lock);
}

/*
 * What is decided for one slot under the lock and can be done there.  To start
 * a worker, and to clear up behind a database, is left to the caller.
 */
static Action
decide(int i, TimestampTz now, int probes, TimestampTz *wake_at,
	   Oid *freed, uint32 *endpoints)
{
	OutboxDatabase *db = &outbox_shared->databases[i];
	Action		action = NOTHING;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	if (OidIsValid(db->dboid))
		action = judge(i, now, probes, wake_at);
	if (action == STOP)
		stop_worker(i);
	else if (action == FREE)
	{
		*freed = db->dboid;
		*endpoints = pg_atomic_read_u32(&db->highest_endpoint);
		db->dboid = InvalidOid;
	}
	LWLockRelease(outbox_shared->lock);
	return action;
}

static void
visit_slots(TimestampTz now, TimestampTz *wake_at)
{
	int			probes = count_probes(now);
	int			begin = first_slot;
	bool		full = now < no_room_until;
	bool		freed_any = false;

	for (int n = 0; n < OUTBOX_MAX_DATABASES; n++)
	{
		int			i = (begin + n) % OUTBOX_MAX_DATABASES;
		Oid			freed = InvalidOid;
		uint32		endpoints = 0;

		switch (decide(i, now, probes, wake_at, &freed, &endpoints))
		{
			case START:
				if (!full && start_worker(i, now))
				{
					if (!outbox_shared->databases[i].has_extension)
						probes++;
					break;
				}
				if (!full)
				{
					/* Who comes away empty-handed is the first next time. */
					full = true;
					first_slot = i;
					no_room_until = TimestampTzPlusMilliseconds(now, NO_ROOM_DELAY);
				}
				put_off(i);
				break;
			case FREE:
				outbox_stats_forget_all(freed, endpoints);
				freed_any = true;
				break;
			default:
				break;
		}
	}
	if (full)
		*wake_at = Min(*wake_at, no_room_until);

	/* A database that had found no slot may do so now. */
	if (freed_any && outbox_databases_claim())
		*wake_at = now;
}

/* Milliseconds until the next round, unless something happens before. */
static long
play_round(void)
{
	TimestampTz wake_at;
	TimestampTz now;

	reap();
	wake_at = outbox_databases_update();
	now = GetCurrentTimestamp();
	visit_slots(now, &wake_at);
	return Max(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), wake_at), 1);
}

static void
launcher_gone(int code, Datum arg)
{
	(void) code;
	(void) arg;
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
	take_over();
}

void
outbox_launcher_main(Datum arg)
{
	(void) arg;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	become_launcher();

	for (;;)
	{
		long		timeout;

		/*
		 * Ends quietly when it is told to between two rounds; not with code
		 * 0, for then the postmaster would never start it again.
		 */
		if (ProcDiePending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		timeout = play_round();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}
