#ifndef OUTBOX_FORGET_H
#define OUTBOX_FORGET_H

#include "base/outbox.h"

#include "server/shmem.h"

/*
 * The list of requests to forget was read, and endpoints loaded: drops the copies that
 * are in memory.
 */
extern void outbox_forget_copies(void);

/*
 * Every worker: reports that it has no copy left of events that are to be forgotten, and
 * when that is due.  All outcomes have to be settled before.
 */
extern void		   outbox_forget_report(void *now);
extern TimestampTz outbox_forget_report_time(void);

/* The worker that has the database: the next slice, and when it is due. */
extern void		   outbox_forget_run(void *arg);
extern TimestampTz outbox_forget_next_time(void);

#endif /* OUTBOX_FORGET_H */
