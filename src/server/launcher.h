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

#endif /* OUTBOX_LAUNCHER_H */
