/*
 * worker_processes.h
 *	  The worker processes that the launcher has.
 */
#ifndef OUTBOX_WORKER_PROCESSES_H
#define OUTBOX_WORKER_PROCESSES_H

#include "server/shmem.h"

/* Is there a process of this worker, or was one asked for?  How many are there? */
extern bool outbox_has_process(int slot, int worker);
extern int	outbox_count_processes(int slot);

/* Notes who is gone.  True: somebody is. */
extern bool outbox_reap_processes(void);

/* At the launcher's start: those of one that ended before. */
extern void outbox_take_over_processes(void);

/* False: PostgreSQL has no process left. */
extern bool outbox_start_worker(int slot, int worker, TimestampTz now);

/* Tells all workers of a database to leave.  The exclusive lock is held. */
extern void outbox_stop_workers(int slot);

#endif /* OUTBOX_WORKER_PROCESSES_H */
