/*
 * worker_start.h
 *	  What a worker does before its loop.
 */
#ifndef OUTBOX_WORKER_START_H
#define OUTBOX_WORKER_START_H

#include "worker/dispatch.h"

/*
 * Makes everything ready that the loop needs, for the log as the tables show it.
 * Returns when there may be something to deliver; a worker that may not work
 * (another version's objects, a copy of a log, a role without privileges) says
 * so, waits here for a change, and ends.
 */
extern void outbox_worker_start(OutboxDatabase *db, OutboxEnded delivery_ended);

#endif /* OUTBOX_WORKER_START_H */
