/*
 * wakeup.h
 *	  Rings the worker when a transaction that emitted, or that changed
 *	  endpoints, commits.
 */
#ifndef OUTBOX_WAKEUP_H
#define OUTBOX_WAKEUP_H

#include "base/outbox.h"

/* What a transaction is to wake. */
typedef struct OutboxMarks
{
	int			what;
	TimestampTz scheduled_for; /* the earliest, where something is scheduled */
} OutboxMarks;

extern void outbox_mark_emitted(void); /* this transaction emits */
extern void outbox_mark_changed(void); /* this transaction changes endpoints */

/* This transaction schedules an event for then. */
extern void outbox_mark_scheduled(TimestampTz deliver_at);
extern void outbox_mark_launcher(void);	 /* this transaction makes or drops the
										 * extension: the launcher looks again */
extern void outbox_mark_databases(void); /* this transaction changes
											 * pg_database */

/*
 * PREPARE TRANSACTION, before it; COMMIT PREPARED and ROLLBACK PREPARED, after
 * it: the one that commits wakes what the other one would have.
 */
extern void outbox_wakeup_prepare(const char *gid);
extern void outbox_wakeup_end_prepared(const char *gid, bool commit);

#endif /* OUTBOX_WAKEUP_H */
