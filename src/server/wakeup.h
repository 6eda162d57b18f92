#ifndef OUTBOX_WAKEUP_H
#define OUTBOX_WAKEUP_H

#include "base/outbox.h"

extern void outbox_mark_emitted(void); /* this transaction emits */
extern void outbox_mark_changed(void); /* it changes endpoints, or gives a command */

/* This transaction schedules an event for that time. */
extern void outbox_mark_scheduled(TimestampTz deliver_at);
extern void outbox_mark_launcher(void);	 /* it makes or drops the extension */
extern void outbox_mark_databases(void); /* it changes pg_database */
extern void outbox_mark_prepared(void);	 /* it commits a prepared transaction */

#endif /* OUTBOX_WAKEUP_H */
