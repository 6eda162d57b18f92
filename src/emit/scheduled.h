/*
 * scheduled.h
 *	  Events with a time of their own: they enter the log when they are due.
 */
#ifndef OUTBOX_SCHEDULED_H
#define OUTBOX_SCHEDULED_H

#include "server/shmem.h"

/* As for outbox_log_init(). */
extern void outbox_scheduled_init(int64 epoch, bool zero);

/* What another worker knew of the table is not known here. */
extern void outbox_scheduled_begin(void);

/* Appends what is due to the log, a batch in a transaction of its own. */
extern void outbox_scheduled_step(OutboxDatabase *db, TimestampTz now);

/* A step was an error: the next one tries each event by itself. */
extern void outbox_scheduled_failed(void);

/* When the next step has something to do. */
extern TimestampTz outbox_scheduled_next_time(OutboxDatabase *db);

#endif /* OUTBOX_SCHEDULED_H */
