/*
 * worker_processes.c
 *	  Owns the worker processes that the launcher has: how they are started and
 *	  ended, what is noted when one is gone, and when it may come again.
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/timestamp.h"

#include "server/database_list.h"
#include "server/launcher.h"
#include "server/worker_processes.h"

/* All in milliseconds. */
#define CLEAN_EXIT_DELAY 1000 /* after its start, at the least */
#define FIRST_DELAY 1000	  /* doubled with each failure in a row */
#define LONGEST_DELAY 30000
#define HEALTHY_AFTER \
	60000 /* a worker that lived so long has not failed
								 * in a row */

/* The process of a worker, as the postmaster knows it. */
typedef struct Process
{
	BackgroundWorkerHandle *handle;	  /* NULL: none, or started by a launcher
									 * before us */
	bool					stopping; /* we told it to leave */
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

/*
 * Sets when the database gets this worker again, after it is gone.  The lock is
 * held.
 */
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
 * What the last process of a database says counts for all of them: one that was
 * late to notice that the extension is gone must not speak for those that have
 * found a new one.
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

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	worker->state = OUTBOX_WORKER_NONE;
	worker->pid = 0;
	worker->latch = NULL;
	worker->absence = OUTBOX_ABSENCE_NONE;
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
}

/*
 * Notes who is gone.  A process of ours is gone when the postmaster says so,
 * which includes one that never came to attach itself; one that a launcher
 * before us had started is gone when it says so itself.
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
 * A launcher that ended leaves workers behind, which go on.  What it had only
 * begun to start is not waited for: when it attaches, it finds that its
 * generation is over.
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

static bool
launch(int i, int w, const char *datname)
{
	OutboxWorker	*place = &outbox_shared->databases[i].workers[w];
	BackgroundWorker worker = {0};

	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = OUTBOX_WORKER_ARGUMENT(i, w);
	strlcpy(worker.bgw_library_name, "outbox", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "outbox_worker_main",
			sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "outbox worker %d for %s", w + 1,
			 datname);
	strlcpy(worker.bgw_type, "outbox worker", sizeof(worker.bgw_type));
	memcpy(worker.bgw_extra, &place->generation, sizeof(place->generation));
	return RegisterDynamicBackgroundWorker(&worker, &processes[i][w].handle);
}

/*
 * Marked as starting before it is asked for: a command that wants the database
 * for itself, and comes in between, has to wait for it.  Only we start
 * workers, and only we free slots, so the slot stays what it is meanwhile.
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
