/*
 * launcher.h
 *	  Starts a worker in each database that has the extension, and is the only
 *	  one that starts it again.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "shmem.h"

extern void outbox_launcher_register(void); /* from _PG_init */
extern PGDLLEXPORT void outbox_launcher_main(Datum arg);

/* worker.c; the argument is the index of the database's slot. */
extern PGDLLEXPORT void outbox_worker_main(Datum arg);

/*
 * Makes this process the worker of the slot, as early as it likes.  Does not
 * return when the process is not wanted any more: its slot has gone to another
 * one, or somebody wants the database for himself.
 */
extern void outbox_worker_attach(OutboxDatabase *db);

/* Says what the worker does.  To call it means: the extension is here. */
extern void outbox_worker_report(OutboxDatabase *db, OutboxWorkerState state,
								 const char *reason);

/*
 * Says that the extension is not here.  The process ends after this with exit
 * code 0, and the launcher does not come back until somebody rings.  A worker
 * that ends in any other way, with any exit code, is started again.
 */
extern void outbox_worker_no_extension(OutboxDatabase *db);

#endif							/* OUTBOX_LAUNCHER_H */
