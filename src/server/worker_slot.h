#ifndef OUTBOX_WORKER_SLOT_H
#define OUTBOX_WORKER_SLOT_H

#include "server/shmem.h"

/*
 * Makes this process that worker of the database.  Does not return when the process
 * is not wanted any more: another process has its place, or another session needs
 * the database without connections.
 */
extern void outbox_worker_slot_attach(int database, int worker);

/* Reports the state of the worker.  It also says that the database has the extension. */
extern void outbox_worker_slot_report(OutboxWorkerState state, const char *reason);

/*
 * Reports that the database does not have the extension.  The process then ends with
 * exit code 0, and the launcher starts none here until it is woken.  A worker that
 * ends in any other way, with any exit code, is started again.
 */
extern void outbox_worker_slot_no_extension(void);

/* Reports whether a worker that starts waits for a lock. */
extern void outbox_worker_slot_waits_for_lock(bool waits);

/*
 * True if this process has this endpoint of the session's database, and has looked at the
 * log a moment ago: its published figures are not older.
 */
extern bool outbox_worker_counts(int32 endpoint_id, int pid);

/*
 * Notes that this process ends because there is nothing to do in this state, until the
 * database's 'changed' is another one than 'changed'.  After 'ms' milliseconds the next
 * process looks again.  Returns true if the process before had said the same.
 */
extern bool outbox_worker_slot_rest(OutboxWorkerState state, const char *reason,
									uint64 changed, long ms);

/* True if a worker of any database has no process because PostgreSQL has none left. */
extern bool outbox_worker_slots_lack(void);

#endif /* OUTBOX_WORKER_SLOT_H */
