#ifndef OUTBOX_RETENTION_H
#define OUTBOX_RETENTION_H

#include "server/shmem.h"

/*
 * The first reads outbox.pieces and outbox.retention_here, the second only the latter.
 * Both need a transaction.
 */
extern void outbox_retention_init(void);
extern void outbox_retention_configure(void);

/* s: how long this database keeps events. */
extern int outbox_retention_of_events(void);

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
