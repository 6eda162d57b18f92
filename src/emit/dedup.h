/*
 * dedup.h
 *	  One deduplication key, one event, for as long as outbox.dedup_window says.
 */
#ifndef OUTBOX_DEDUP_H
#define OUTBOX_DEDUP_H

#include "base/outbox.h"

#include "utils/uuid.h"

/*
 * Claims a key for the event 'id'.  False: an event of this topic has it
 * already, and 'id' is now that one's.  Waits for a transaction that has
 * claimed the key and not ended yet.
 */
extern bool outbox_dedup_claim(text *topic, text *key, pg_uuid_t *id);

/* The worker's part: forgets keys whose time is over, a little at each call. */
extern void		   outbox_dedup_sweep(TimestampTz now);
extern TimestampTz outbox_dedup_next_time(void);
extern void		   outbox_dedup_failed(void); /* a call was an error */

#endif /* OUTBOX_DEDUP_H */
