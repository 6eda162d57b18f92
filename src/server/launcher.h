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
	Int32GetDatum(OUTBOX_MAX_WORKERS *(slot) + (worker))
#define OUTBOX_ARGUMENT_SLOT(arg) (DatumGetInt32(arg) / OUTBOX_MAX_WORKERS)
#define OUTBOX_ARGUMENT_WORKER(arg) (DatumGetInt32(arg) % OUTBOX_MAX_WORKERS)

#endif /* OUTBOX_LAUNCHER_H */
