/*
 * scheduled.h
 *	  Events with a delivery time.  They enter the log when they are due.
 */
#ifndef OUTBOX_SCHEDULED_H
#define OUTBOX_SCHEDULED_H

#include "server/shmem.h"

/* Sets the epochs of this log.  'zero': epoch 0 belongs to it, too. */
extern void outbox_scheduled_init(int64 epoch, bool zero);

/* Called when this worker takes the share of the database: the whole table is read. */
extern void outbox_scheduled_begin(void);

/* Appends events that are due to the log: one batch, in a transaction of its own. */
extern void outbox_scheduled_step(void *now);

/* Called after a step failed.  The next step tries each event on its own. */
extern void outbox_scheduled_failed(void);

/* When the next step has something to do. */
extern TimestampTz outbox_scheduled_next_time(void);

#endif /* OUTBOX_SCHEDULED_H */
