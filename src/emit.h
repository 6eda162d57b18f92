/*
 * emit.h
 *	  What other rooms may ask about appending to the log.
 */
#ifndef OUTBOX_EMIT_H
#define OUTBOX_EMIT_H

#include "outbox.h"

#include "utils/jsonb.h"

/*
 * What a writer chooses about an event; the rest is stamped on it.  Detoasted;
 * NULL where there is nothing.
 */
typedef struct OutboxNewEvent
{
	text	   *topic;
	text	   *type;
	text	   *key;
	Jsonb	   *headers;
	Jsonb	   *payload;
	bytea	   *body;
	text	   *content_type;
	bool		expires;
	TimestampTz expires_at;
} OutboxNewEvent;

/*
 * The epoch that an event of this backend gets now: that of the row in
 * outbox.origins that belongs to this system and database, or 0.  Needs a
 * transaction.  Cached: whoever writes outbox.origins must call
 * CacheInvalidateRelcacheByRelid() for it.
 */
extern int64 outbox_current_epoch(void);

/* The owner of outbox.events; InvalidOid when it has just gone. */
extern Oid	outbox_log_owner(void);

/*
 * check.c: returns if the event may be written, else raises the error that says
 * why not.  'restoring': the owner of the log may write reserved topics.
 */
extern void outbox_check(const OutboxNewEvent *e, bool restoring);

#endif							/* OUTBOX_EMIT_H */
