#ifndef OUTBOX_EVENT_STAMP_H
#define OUTBOX_EVENT_STAMP_H

#include "base/outbox.h"

#include "storage/lockdefs.h"
#include "utils/jsonb.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

/* The columns of outbox.events. */
enum
{
	Anum_events_id = 1,
	Anum_events_seq,
	Anum_events_xid,
	Anum_events_epoch,
	Anum_events_created_at,
	Anum_events_piece,
	Anum_events_topic,
	Anum_events_type,
	Anum_events_key,
	Anum_events_tenant,
	Anum_events_expires_at,
	Anum_events_headers,
	Anum_events_payload,
	Anum_events_body,
	Anum_events_content_type,
	Natts_events = Anum_events_content_type
};

/* The same in a SELECT of rows that are not all in one piece, which is NULL then. */
#define OUTBOX_EVENT_COLUMNS \
	"id, seq, xid, epoch, created_at, NULL::pg_catalog.int2, topic, type, key, tenant, " \
	"expires_at, headers, payload, body, content_type"

/* The columns of outbox.scheduled. */
enum
{
	Anum_scheduled_id = 1,
	Anum_scheduled_deliver_at,
	Anum_scheduled_xid,
	Anum_scheduled_epoch,
	Anum_scheduled_created_at,
	Anum_scheduled_topic,
	Anum_scheduled_type,
	Anum_scheduled_key,
	Anum_scheduled_tenant,
	Anum_scheduled_expires_at,
	Anum_scheduled_headers,
	Anum_scheduled_payload,
	Anum_scheduled_body,
	Anum_scheduled_content_type,
	Anum_scheduled_dedup_key,
	Anum_scheduled_failed_at,
	Anum_scheduled_retry_at,
	Anum_scheduled_error,
	Natts_scheduled = Anum_scheduled_error
};

typedef struct OutboxLogTables
{
	Oid events;
	Oid pieces[OUTBOX_LOG_PIECES];
	Oid seq;
	Oid origins;
	Oid scheduled;
} OutboxLogTables;

/*
 * The tables of the log.  Looked up once per backend, and again after they changed.
 * Throws if the extension does not exist, or has another version.
 */
extern const OutboxLogTables *outbox_log_tables(void);

/*
 * Open a relation of the extension, which may wait for a lock: one of
 * outbox_log_tables(), and one by its name.  Throw (42P01) if it does not exist, or is dropped meanwhile.
 */
extern Relation outbox_log_table_open(const Oid *relid, LOCKMODE mode);
extern Relation outbox_table_open(const char *name, LOCKMODE mode);

/*
 * From here on, this session has the privileges of the owner of the log: a role that may
 * emit need not have any on its tables.  The second ends that, and so does an error.
 */
typedef struct OutboxCaller
{
	Oid user;
	int context;
} OutboxCaller;

extern OutboxCaller outbox_become_log_owner(void);
extern void			outbox_become_caller(OutboxCaller caller);

/* The piece of the log that new events go to, from 0. */
extern int outbox_current_piece(void);

/*
 * The epoch of an event that this backend emits now.  It is the log's epoch if the log
 * belongs to this system and database.  It is 0 if the log has no origin yet, and
 * OUTBOX_EPOCH_OF_COPY in a copy that was not adopted.  Needs a transaction.  Cached:
 * a transaction that writes outbox.origins must call CacheInvalidateRelcacheByRelid()
 * for it.
 */
#define OUTBOX_EPOCH_OF_COPY (-1)

extern int64 outbox_current_epoch(void);

/*
 * The xid at which an event with this epoch and xid lies among the snapshots of this
 * log.  0 if the event is not part of it.
 */
extern uint64 outbox_log_xid(int64 epoch, uint64 xid);

/*
 * Returns the headers, or NULL where there are none.  The JSON null means none, too,
 * because some clients send it for a value that is not set.
 */
extern Jsonb *outbox_headers_or_null(Jsonb *headers);

/* Makes a new event id.  'now' is the present time. */
extern void outbox_make_id(TimestampTz now, pg_uuid_t *id);

#endif /* OUTBOX_EVENT_STAMP_H */
