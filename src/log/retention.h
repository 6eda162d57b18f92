/*
 * retention.h
 *	  Removes old events and attempts, a table at a time.
 */
#ifndef OUTBOX_RETENTION_H
#define OUTBOX_RETENTION_H

#include "server/shmem.h"

/* Reads outbox.pieces.  Needs a transaction. */
extern void outbox_retention_init(OutboxDatabase *db);

/* When outbox_retention_run() is to be called next. */
extern TimestampTz outbox_retention_next_time(void);

/*
 * True if outbox_retention_run() would check whether a piece of the log can be
 * emptied.
 */
extern bool outbox_retention_checks_log(TimestampTz now);

/*
 * Empties tables that are old enough and not needed any more.  If it checks the log,
 * all settled deliveries must have been written before.
 */
extern void outbox_retention_run(void);

#endif /* OUTBOX_RETENTION_H */
