#ifndef OUTBOX_DEDUP_H
#define OUTBOX_DEDUP_H

#include "base/outbox.h"

#include "emit/emit.h"

/*
 * Claims the event's key for 'id'.  Returns false if an event of its topic and its
 * tenant already has it: 'id' is then set to the id of that event.  Waits for a
 * transaction that has claimed the key and has not ended yet.
 */
extern bool outbox_dedup_claim(const OutboxNewEvent *e, pg_uuid_t *id);

/* Called by the worker: deletes keys whose time is over, a few blocks in each call. */
extern void		   outbox_dedup_sweep(void *now);
extern TimestampTz outbox_dedup_next_time(void);
extern void		   outbox_dedup_failed(void); /* to be called after an error */

#endif /* OUTBOX_DEDUP_H */
