#ifndef OUTBOX_WORKER_PROCESSES_H
#define OUTBOX_WORKER_PROCESSES_H

#include "postmaster/bgworker.h"

#include "server/shmem.h"

/* The process "outbox KIND", which calls outbox_KIND_main().  A standby starts it when promoted. */
extern BackgroundWorker outbox_background_worker(const char *kind, int restart);

/*
 * The first is true if this worker has a process, or one was asked for.  The second
 * returns the number of such workers.
 */
extern bool outbox_has_process(int slot, int worker);
extern int	outbox_count_processes(int slot);

/* Notes which processes have ended.  Returns true if one has. */
extern bool outbox_reap_processes(void);

/* At the launcher's start: takes over the processes of a launcher that has ended. */
extern void outbox_take_over_processes(void);

/*
 * True if a worker has ended because it has nothing to do, and nothing has changed since.
 * Sets until when.  The second ends the rest of all workers.
 */
extern bool outbox_worker_rests(int slot, int worker, TimestampTz *until);
extern void outbox_rest_no_longer(void);

/* Starts the process of a worker.  Returns false if PostgreSQL has no process left. */
extern bool outbox_start_worker(int slot, int worker, TimestampTz now);

/* Ends all workers of a database.  The exclusive lock is held. */
extern void outbox_stop_workers(int slot);

/* worker.c */
extern PGDLLEXPORT void outbox_worker_main(Datum arg);

/* The argument of outbox_worker_main(): which worker of which slot. */
#define OUTBOX_WORKER_ARGUMENT(slot, worker) \
	Int32GetDatum(OUTBOX_MAX_WORKERS *(slot) + (worker))
#define OUTBOX_ARGUMENT_SLOT(arg) (DatumGetInt32(arg) / OUTBOX_MAX_WORKERS)
#define OUTBOX_ARGUMENT_WORKER(arg) (DatumGetInt32(arg) % OUTBOX_MAX_WORKERS)

#endif /* OUTBOX_WORKER_PROCESSES_H */
