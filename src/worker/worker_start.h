#ifndef OUTBOX_WORKER_START_H
#define OUTBOX_WORKER_START_H

#include "worker/dispatch.h"

/*
 * Prepares everything that the loop needs, and returns when there may be something
 * to deliver.  A worker may be unable to deliver: the objects have another version,
 * the log is a copy, or the role lacks privileges.  Then it reports that, waits
 * here for a change, and ends the process.
 */
extern void outbox_worker_start(OutboxEnded delivery_ended);

/*
 * True if the process is to end, because the worker has nothing to do until then (0: it has),
 * and another database lacks a process.  The launcher starts the next one.
 */
extern bool outbox_worker_gives_way(TimestampTz until);

#endif /* OUTBOX_WORKER_START_H */
