/*
 * worker_processes.h
 *	  The worker processes that the launcher has started.
 */
#ifndef OUTBOX_WORKER_PROCESSES_H
#define OUTBOX_WORKER_PROCESSES_H

#include "server/shmem.h"

/* True if this worker has a process, or one was asked for; and the number of those. */
extern bool outbox_has_process(int slot, int worker);
extern int	outbox_count_processes(int slot);

/* Notes which processes have ended.  Returns true if one has. */
extern bool outbox_reap_processes(void);

/* At the launcher's start: takes over the processes of a launcher that has ended. */
extern void outbox_take_over_processes(void);

/* Starts the process of a worker.  Returns false if PostgreSQL has no process left. */
extern bool outbox_start_worker(int slot, int worker, TimestampTz now);

/* Ends all workers of a database.  The exclusive lock is held. */
extern void outbox_stop_workers(int slot);

#endif /* OUTBOX_WORKER_PROCESSES_H */
