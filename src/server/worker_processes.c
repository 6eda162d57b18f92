/*
 * worker_processes.c
 *	  Owns the worker processes that the launcher has started: how they start
 *	  and end, the notes when one has ended, and when it may start again.
 */
#include "base/outbox.h"

#include <signal.h>

#include "server/database_list.h"
#include "server/worker_processes.h"

/* All in milliseconds. */
#define CLEAN_EXIT_DELAY 1000 /* at least, from one start to the next */
#define FIRST_DELAY 1000	  /* after the second failure; then doubled each time */
#define LONGEST_DELAY 30000
#define HEALTHY_AFTER 60000 /* after so long, a failure counts as the first in a row */

/* The process of a worker, as the postmaster knows it. */
typedef struct Process
{
	BackgroundWorkerHandle *handle;	  /* NULL: none, or a former launcher started it */
	bool					stopping; /* the launcher has sent it SIGTERM */
} Process;

static Process processes[OUTBOX_MAX_DATABASES][OUTBOX_MAX_WORKERS];

bool
outbox_has_process(int i, int w)
{
	OutboxWorker *worker = &outbox_shared->databases[i].workers[w];

	return processes[i][w].handle != NULL || worker->pid != 0 || worker->exited;
}

int
outbox_count_processes(int i)
{
	int n = 0;

	for (int w = 0; w < outbox_shared->databases[i].nworkers; w++)
		n += outbox_has_process(i, w);
	return n;
}

/* Sets when this worker may start again, after it has ended.  The lock is held. */
static void
pace(OutboxWorker *worker, TimestampTz now)
{
	if (worker->exited_cleanly)
	{
		worker->next_start_at = TimestampTzPlusMilliseconds(worker->started_at,
															CLEAN_EXIT_DELAY);
		return;
	}
	if (TimestampDifferenceExceeds(worker->started_at, now, HEALTHY_AFTER))
		worker->failures = 0;
	worker->delay = worker->failures == 0 ?
		0 :
		Min(FIRST_DELAY << Min(worker->failures - 1, 10), LONGEST_DELAY) / 1000;
	worker->failures++;
	worker->restarts++;
	worker->next_start_at = TimestampTzPlusMilliseconds(now, worker->delay * 1000);
	worker->absence = OUTBOX_ABSENCE_FAILED;
}

/*
 * Only the report of a database's last process counts.  A process that is late to see
 * that the extension is gone must not hide that others have found it made anew.
 */
static void
note_last_exit(OutboxDatabase *db, bool found_none)
{
	OutboxKnownDatabase *database = outbox_database_known(db->dboid);

	if (found_none)
		db->has_extension = false;
	if (found_none && !db->probe && database != NULL)
		database->without = true;
	else if (!db->has_extension)
		db->probe = true;
}

static void
note_exit(int i, int w, TimestampTz now)
{
	OutboxDatabase *db = &outbox_shared->databases[i];
	OutboxWorker   *worker = &db->workers[w];
	Process		   *process = &processes[i][w];
	int32			stuck_for = worker->stuck_for;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	worker->state = OUTBOX_WORKER_NONE;
	worker->pid = 0;
	worker->latch = NULL;
	worker->absence = OUTBOX_ABSENCE_NONE;
	worker->restarts += stuck_for != 0 && worker->exited_cleanly;
	if (process->stopping || db->holds > 0)
		worker->next_start_at = now;
	else
		pace(worker, now);
	worker->exited = false;
	if (process->handle != NULL)
		pfree(process->handle);
	process->handle = NULL;
	process->stopping = false;
	if (outbox_count_processes(i) == 0)
		note_last_exit(db, worker->found_none);
	LWLockRelease(outbox_shared->lock);
	if (stuck_for > 0)
		ereport(
			WARNING,
			(errcode(ERRCODE_SYSTEM_ERROR),
			 errmsg("outbox worker %d of database %u ended itself: %s (endpoint %d)",
					w + 1, db->dboid, OUTBOX_STUCK, stuck_for),
			 errhint(
				 "The endpoint is held, and all others are served. The view outbox.held_steps shows for how long. SELECT pg_reload_conf() makes the worker try it again at once.")));
	else if (stuck_for < 0)
		ereport(
			WARNING,
			(errcode(ERRCODE_SYSTEM_ERROR),
			 errmsg(
				 "outbox worker %d of database %u ended itself: a call of a library did not return within 2 s, and it is not known for which endpoint",
				 w + 1, db->dboid)));
}

/*
 * A process of this launcher has ended when the postmaster says so.  That includes a
 * process that never attached to its slot.  A process that a former launcher started has
 * ended when its slot says so.
 */
bool
outbox_reap_processes(void)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		any = false;

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
		for (int w = 0; w < outbox_shared->databases[i].nworkers; w++)
		{
			BackgroundWorkerHandle *handle = processes[i][w].handle;
			pid_t					pid;

			if (handle != NULL ? GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED :
								 outbox_shared->databases[i].workers[w].exited)
			{
				note_exit(i, w, now);
				any = true;
			}
		}
	return any;
}

/*
 * A launcher that ended leaves workers behind, which continue.  A process that it had
 * only asked for is not waited for.  When that process attaches, its generation is
 * over, and it ends.
 */
void
outbox_take_over_processes(void)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		OutboxDatabase *db = &outbox_shared->databases[i];

		if (!OidIsValid(db->dboid))
			continue;
		for (int w = 0; w < db->nworkers; w++)
			if (!outbox_has_process(i, w))
			{
				db->workers[w].generation++;
				db->workers[w].state = OUTBOX_WORKER_NONE;
			}
		if (!db->has_extension && outbox_count_processes(i) == 0)
			db->probe = true;
	}
	LWLockRelease(outbox_shared->lock);
}

void
outbox_stop_workers(int i)
{
	OutboxDatabase *db = &outbox_shared->databases[i];

	for (int w = 0; w < db->nworkers; w++)
	{
		if (!outbox_has_process(i, w) || processes[i][w].stopping)
			continue;
		processes[i][w].stopping = true;
		if (processes[i][w].handle != NULL)
			TerminateBackgroundWorker(processes[i][w].handle);
		else if (db->workers[w].pid != 0)
			kill(db->workers[w].pid, SIGTERM);
	}
}

bool
outbox_worker_rests(int i, int w, TimestampTz *until)
{
	const OutboxDatabase *db = &outbox_shared->databases[i];
	const OutboxWorker	 *worker = &db->workers[w];

	*until = worker->rests_until;
	return worker->rests != OUTBOX_WORKER_NONE &&
		worker->rested_at ==
		pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &db->changed));
}

void
outbox_rest_no_longer(void)
{
	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
		for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
			outbox_shared->databases[i].workers[w].rests_until = 0;
}

BackgroundWorker
outbox_background_worker(const char *kind, int restart)
{
	BackgroundWorker worker = {.bgw_flags = BGWORKER_SHMEM_ACCESS |
								   BGWORKER_BACKEND_DATABASE_CONNECTION,
							   .bgw_start_time = BgWorkerStart_RecoveryFinished,
							   .bgw_restart_time = restart};

	strcpy(worker.bgw_library_name, "outbox");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "outbox_%s_main", kind);
	snprintf(worker.bgw_name, BGW_MAXLEN, "outbox %s", kind);
	snprintf(worker.bgw_type, BGW_MAXLEN, "outbox %s", kind);
	return worker;
}

static bool
launch(int i, int w, const char *datname)
{
	OutboxWorker	*place = &outbox_shared->databases[i].workers[w];
	BackgroundWorker worker = outbox_background_worker("worker", BGW_NEVER_RESTART);

	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = OUTBOX_WORKER_ARGUMENT(i, w);
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "outbox worker %d for %s", w + 1,
			 datname);
	memcpy(worker.bgw_extra, &place->generation, sizeof(place->generation));
	return RegisterDynamicBackgroundWorker(&worker, &processes[i][w].handle);
}

/*
 * The worker is marked as starting before its process is asked for.  So a command that
 * needs the database without connections, and begins in between, waits for it.  Only
 * the launcher starts workers and frees slots, so the slot does not change meanwhile.
 */
bool
outbox_start_worker(int i, int w, TimestampTz now)
{
	OutboxDatabase		*db = &outbox_shared->databases[i];
	OutboxWorker		*worker = &db->workers[w];
	OutboxKnownDatabase *database = outbox_database_known(db->dboid);

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db->nworkers = Max(db->nworkers, w + 1);
	worker->generation++;
	worker->state = OUTBOX_WORKER_STARTING;
	worker->absence = OUTBOX_ABSENCE_NONE;
	worker->started_at = now;
	worker->exited_cleanly = false;
	worker->stuck_for = 0;
	worker->found_none = false;
	db->probe = false;
	LWLockRelease(outbox_shared->lock);

	if (launch(i, w, NameStr(database->name)))
		return true;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	worker->state = OUTBOX_WORKER_NONE;
	if (!db->has_extension)
		db->probe = true;
	LWLockRelease(outbox_shared->lock);
	processes[i][w].handle = NULL;
	return false;
}
