/*
 * wakeup.h
 *	  Wakes workers when a transaction that emitted, or that changed endpoints,
 *	  commits.
 */
#ifndef OUTBOX_WAKEUP_H
#define OUTBOX_WAKEUP_H

#include "base/outbox.h"

/* The processes that the commit of a transaction must wake. */
typedef struct OutboxMarks
{
	int			what;
	TimestampTz scheduled_for; /* the earliest time, if an event is scheduled */
} OutboxMarks;

extern void outbox_mark_emitted(void);	   /* this transaction emits */
extern void outbox_mark_changed(bool all); /* this transaction changes endpoints */

/* This transaction schedules an event for that time. */
extern void outbox_mark_scheduled(TimestampTz deliver_at);
extern void outbox_mark_launcher(void);	 /* it makes or drops the extension */
extern void outbox_mark_databases(void); /* it changes pg_database */

/*
 * The first is called before PREPARE TRANSACTION, the second after COMMIT PREPARED or
 * ROLLBACK PREPARED.  The session that commits wakes the processes that the session that
 * prepared would have woken.
 */
extern void outbox_wakeup_prepare(const char *gid);
extern void outbox_wakeup_end_prepared(const char *gid, bool commit);

#endif /* OUTBOX_WAKEUP_H */
