#ifndef OUTBOX_WAKEUP_H
#define OUTBOX_WAKEUP_H

#include "base/outbox.h"

#define OUTBOX_MARK_EMITTED 0x01   /* this transaction emits */
#define OUTBOX_MARK_CHANGED 0x02   /* it changes endpoints, or gives a command */
#define OUTBOX_MARK_LAUNCHER 0x04  /* it makes or drops the extension */
#define OUTBOX_MARK_DATABASES 0x08 /* it changes pg_database */
#define OUTBOX_MARK_SCHEDULED 0x10 /* only by outbox_mark_scheduled() */

extern void outbox_mark(int what);

/* This transaction schedules an event for that time, or commits a prepared transaction. */
extern void outbox_mark_scheduled(TimestampTz deliver_at);
extern void outbox_mark_prepared(void);

#endif /* OUTBOX_WAKEUP_H */
