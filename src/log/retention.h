/*
 * retention.h
 *	  Forgets: old events and attempts, a table at a time.
 */
#ifndef OUTBOX_RETENTION_H
#define OUTBOX_RETENTION_H

#include "server/shmem.h"

/* In a transaction: what outbox.pieces says. */
extern void outbox_retention_init(OutboxDatabase *db);

/* When the next look is due. */
extern TimestampTz outbox_retention_next_time(void);

/* True if outbox_retention_run() would look whether a piece of the log can go. */
extern bool outbox_retention_judges(TimestampTz now);

/*
 * Drops what is old enough and no longer needed.  When it judges the log,
 * everything that was settled must have been written before.
 */
extern void outbox_retention_run(void);

#endif /* OUTBOX_RETENTION_H */
