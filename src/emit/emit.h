/*
 * emit.h
 *	  What other folders may ask about appending to the log.
 */
#ifndef OUTBOX_EMIT_H
#define OUTBOX_EMIT_H

#include "base/outbox.h"

#include "utils/jsonb.h"
#include "utils/uuid.h"

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
	bool		deferred;
	TimestampTz deliver_at;
	bool		expires;
	TimestampTz expires_at;
	text	   *dedup_key;
} OutboxNewEvent;

/*
 * Checks an event and writes it into the log, or puts it aside until
 * 'deliver_at'.  Returns its id, palloc'd; that of the first one when
 * 'dedup_key' was used before.
 */
extern pg_uuid_t *outbox_emit(const OutboxNewEvent *e);

/* Writes an event that was checked before into the log, under its own id. */
extern void outbox_append(const OutboxNewEvent *e, const pg_uuid_t *id);

/*
 * event_check.c: returns if the event may be written, else raises the error that says
 * why not.  'restoring': the owner of the log may write reserved topics.
 * 'sized': outbox.max_payload_size holds.
 */
extern void outbox_check(const OutboxNewEvent *e, bool restoring, bool sized);

#endif /* OUTBOX_EMIT_H */
