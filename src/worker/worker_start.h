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

#endif /* OUTBOX_WORKER_START_H */
