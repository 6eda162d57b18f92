/*
 * launcher.h
 *	  Starts a worker in each database that has the extension, and is the only
 *	  one that starts it again.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "server/shmem.h"

extern void				outbox_launcher_register(void); /* from _PG_init */
extern PGDLLEXPORT void outbox_launcher_main(Datum arg);

/* worker.c */
extern PGDLLEXPORT void outbox_worker_main(Datum arg);

/* Which worker of which slot: the argument of outbox_worker_main(). */
#define OUTBOX_WORKER_ARGUMENT(slot, worker) \
	Int32GetDatum((slot) *OUTBOX_MAX_WORKERS + (worker))
#define OUTBOX_ARGUMENT_SLOT(arg) (DatumGetInt32(arg) / OUTBOX_MAX_WORKERS)
#define OUTBOX_ARGUMENT_WORKER(arg) (DatumGetInt32(arg) % OUTBOX_MAX_WORKERS)

/*
 * Makes this process that worker of the database, as early as it likes.  Does
 * not return when the process is not wanted any more: its place has gone to
 * another one, or somebody wants the database for himself.
 */
extern OutboxWorker *outbox_worker_attach(OutboxDatabase *db, int worker);

/* Says what the worker does.  To call it means: the extension is here. */
extern void outbox_worker_report(OutboxDatabase *db, OutboxWorkerState state,
								 const char *reason);

/*
 * Says that the extension is not here.  The process ends after this with exit
 * code 0, and the launcher does not come back until somebody rings.  A worker
 * that ends in any other way, with any exit code, is started again.
 */
extern void outbox_worker_no_extension(void);

/* A worker that starts says whether a lock keeps it from it. */
extern void outbox_worker_waits_for_lock(bool waits);

#endif /* OUTBOX_LAUNCHER_H */
