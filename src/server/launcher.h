/*
 * launcher.h
 *	  Starts the workers of each database that has the extension.  No other process
 *	  starts or restarts them.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "server/shmem.h"

extern void				outbox_launcher_register(void); /* called from _PG_init */
extern PGDLLEXPORT void outbox_launcher_main(Datum arg);

/* worker.c */
extern PGDLLEXPORT void outbox_worker_main(Datum arg);

/* The argument of outbox_worker_main(): which worker of which slot. */
#define OUTBOX_WORKER_ARGUMENT(slot, worker) \
	Int32GetDatum(OUTBOX_MAX_WORKERS *(slot) + (worker))
#define OUTBOX_ARGUMENT_SLOT(arg) (DatumGetInt32(arg) / OUTBOX_MAX_WORKERS)
#define OUTBOX_ARGUMENT_WORKER(arg) (DatumGetInt32(arg) % OUTBOX_MAX_WORKERS)

#endif /* OUTBOX_LAUNCHER_H */
