#ifndef OUTBOX_EMIT_H
#define OUTBOX_EMIT_H

#include "base/outbox.h"

#include "utils/jsonb.h"
#include "utils/uuid.h"

/*
 * The fields of an event that an emitter chooses.  The rest is stamped on it.  Values
 * are detoasted, and NULL if there is none.
 */
typedef struct OutboxNewEvent
{
	text	   *topic;
	text	   *type;
	text	   *key;
	text	   *tenant;
	Jsonb	   *headers;
	Jsonb	   *payload;
	bytea	   *body;
	text	   *content_type;
	bool		deferred;
	TimestampTz deliver_at;
	bool		expires;
	TimestampTz expires_at;
	text	   *dedup_key;
	TimestampTz created_at; /* 0: now */
	bool		inserted;	/* true if an INSERT writes it, and no function */
} OutboxNewEvent;

/*
 * Checks an event and writes it into the log, or stores it until 'deliver_at'.
 * Returns its id, palloc'd.  If 'dedup_key' was used before, returns the id of the
 * event that has it.  Throws the problem with the event.
 */
extern pg_uuid_t *outbox_emit(const OutboxNewEvent *e);

/* Once per process, when the library is loaded. */
extern void outbox_emit_init(void);

/* Throws (25006) where nothing can be written, a standby for example. */
extern void outbox_refuse_read_only(const char *function);

/*
 * Writes an event that was already checked, under its own id: into the log, or where it
 * waits for its 'deliver_at'.
 */
extern void outbox_append(const OutboxNewEvent *e, const pg_uuid_t *id);

/*
 * event_check.c: returns if the event may be written, otherwise throws the problem.
 * 'restoring': a role that may truncate the log may write reserved topics.  'fresh':
 * the event is new, so outbox.max_payload_size and outbox.require_event_types hold for
 * it, and it has a payload or a body.  A forgotten event has neither.
 */
extern void outbox_check(const OutboxNewEvent *e, bool restoring, bool fresh);

/* Throws (42501) if a role is bound to some topics, and an INSERT of another uses its right. */
extern void outbox_check_lender(Oid role);

/* Throws (22023) if these are no headers of an event, or else of an endpoint. */
extern void outbox_check_headers(Jsonb *headers, bool of_event);

/* Throws (54000) if no event can have this payload.  'sized': its size counts, too. */
extern void outbox_check_payload(Jsonb *payload, bool sized);

#endif /* OUTBOX_EMIT_H */
