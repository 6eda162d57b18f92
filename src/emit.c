/*
 * emit.c
 *	  Appends events to the log: outbox.emit(), and the defaults and checks of
 *	  outbox.events that make a plain INSERT as good.
 *
 * emit() writes the current piece of the log directly, without a parser, a
 * planner or an executor in between.  What the executor would have done is done
 * here: the stamps are those of the column defaults, the checks those of the
 * CHECK constraint.  EXECUTE on emit() is the permission; no privilege on the
 * table is asked for.
 *
 * The order of the steps in append_event() matters to the readers (log.c):
 *
 * - the transaction has its xid before it draws a sequence number.  So whoever
 *	 gets an xid after a snapshot was taken also gets a number above the one that
 *	 the sequence had before that snapshot;
 * - the number is drawn after the lock on the piece, the last thing that can
 *	 make us wait.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
#include "utils/xid8.h"

#include "compat.h"
#include "emit.h"
#include "shmem.h"
#include "wakeup.h"

/* The columns of outbox.events. */
enum
{
	Anum_id = 1,
	Anum_seq,
	Anum_xid,
	Anum_epoch,
	Anum_created_at,
	Anum_piece,
	Anum_topic,
	Anum_type,
	Anum_key,
	Anum_expires_at,
	Anum_headers,
	Anum_payload,
	Anum_body,
	Anum_content_type,
	Natts_events = Anum_content_type
};

static const char *const event_columns[Natts_events] = {
	"id", "seq", "xid", "epoch", "created_at", "piece", "topic", "type", "key",
	"expires_at", "headers", "payload", "body", "content_type"
};

/* The columns of outbox.origins that are read here. */
#define Anum_origins_epoch 1
#define Anum_origins_system_identifier 2
#define Anum_origins_database_oid 3

/*
 * The relations of the log, looked up once per backend.  Forgotten when any of
 * them changes in the relation cache: that includes DROP EXTENSION, so that a
 * new CREATE EXTENSION is found by the same backend.
 */
static struct
{
	bool		valid;
	Oid			events;
	Oid			pieces[OUTBOX_LOG_PIECES];
	Oid			seq;
	Oid			origins;
} log_cache;

static bool epoch_valid;
static int64 epoch_cached;
static uint64 invalidations;	/* so far: a value read meanwhile is not kept */

PG_FUNCTION_INFO_V1(outbox_emit_jsonb);
PG_FUNCTION_INFO_V1(outbox_emit_json);
PG_FUNCTION_INFO_V1(outbox_emit_text);
PG_FUNCTION_INFO_V1(outbox_emit_bytes);
PG_FUNCTION_INFO_V1(outbox_check_event);
PG_FUNCTION_INFO_V1(outbox_column_piece);
PG_FUNCTION_INFO_V1(outbox_column_seq);
PG_FUNCTION_INFO_V1(outbox_column_epoch);
PG_FUNCTION_INFO_V1(outbox_column_id);
PG_FUNCTION_INFO_V1(outbox_fill_id);

/* ---------------------------------------------------------------------
 * Where the log is
 * ---------------------------------------------------------------------
 */

static void
relation_changed(Datum arg, Oid relid)
{
	bool		ours = !OidIsValid(relid) || relid == log_cache.events ||
		relid == log_cache.seq || relid == log_cache.origins;

	(void) arg;
	for (int i = 0; i < OUTBOX_LOG_PIECES; i++)
		ours |= relid == log_cache.pieces[i];
	if (ours)
	{
		log_cache.valid = false;
		epoch_valid = false;
		invalidations++;
	}
}

static Oid
find_relation(Oid schema, const char *name)
{
	Oid			relid = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist", OUTBOX_SCHEMA, name),
				 errhint("The extension is not installed in this database, or not as its script made it: DROP EXTENSION outbox; CREATE EXTENSION outbox.")));
	return relid;
}

/* A library must not write into tables of another version. */
static bool
has_event_columns(Oid relid)
{
	for (int i = 0; i < Natts_events; i++)
		if (get_attnum(relid, event_columns[i]) != i + 1)
			return false;
	return get_attname(relid, Natts_events + 1, true) == NULL;
}

static void
find_log(void)
{
	static bool registered = false;
	uint64		before;
	Oid			schema;

	if (log_cache.valid)
		return;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		registered = true;
	}

	before = invalidations;
	schema = get_namespace_oid(OUTBOX_SCHEMA, true);
	log_cache.events = find_relation(schema, "events");
	log_cache.seq = find_relation(schema, "events_seq");
	log_cache.origins = find_relation(schema, "origins");
	for (int i = 0; i < OUTBOX_LOG_PIECES; i++)
	{
		char		name[NAMEDATALEN];

		snprintf(name, sizeof(name), "events_%d", i);
		log_cache.pieces[i] = find_relation(schema, name);

		if (!has_event_columns(log_cache.pieces[i]))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s.%s\" is not of the version that the library of outbox serves",
							OUTBOX_SCHEMA, name),
					 errhint("Run ALTER EXTENSION outbox UPDATE, or start the server with the library of the installed version.")));
	}
	log_cache.valid = before == invalidations;
}

Oid
outbox_log_owner(void)
{
	HeapTuple	tuple;
	Oid			owner = InvalidOid;

	find_log();
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(log_cache.events));
	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
	}
	return owner;
}

/* The piece that new events go to; without shared memory, the first. */
static int
current_piece(void)
{
	OutboxDatabase *db = outbox_shared ? outbox_database_slot(MyDatabaseId, false) : NULL;
	uint32		piece = db ? pg_atomic_read_u32(&db->piece) : 0;

	return Min(piece, OUTBOX_LOG_PIECES - 1);
}

/*
 * Reads with the latest snapshot, not the transaction's: a REPEATABLE READ
 * transaction that is older than the epoch writes events of that epoch too.
 */
int64
outbox_current_epoch(void)
{
	uint64		before;
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
	int64		epoch = 0;

	find_log();
	if (epoch_valid)
		return epoch_cached;

	before = invalidations;
	rel = table_open(log_cache.origins, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;

		slot_getsomeattrs(slot, Anum_origins_database_oid);
		if ((uint64) DatumGetInt64(slot_getattr(slot, Anum_origins_system_identifier, &isnull)) == GetSystemIdentifier() &&
			DatumGetObjectId(slot_getattr(slot, Anum_origins_database_oid, &isnull)) == MyDatabaseId)
		{
			epoch = DatumGetInt64(slot_getattr(slot, Anum_origins_epoch, &isnull));
			break;
		}
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);

	/* What changed while it was read is read again next time. */
	epoch_cached = epoch;
	epoch_valid = before == invalidations;
	return epoch;
}

/* ---------------------------------------------------------------------
 * Stamps
 * ---------------------------------------------------------------------
 */

/*
 * The next number of the log.  The xid comes first, see the top of this file;
 * that holds for a direct INSERT too, which comes here through the column
 * default.  This is also where the transaction is marked as one that emits.
 */
static int64
next_seq(void)
{
	int64		seq;

	(void) GetTopTransactionId();
	seq = nextval_internal(log_cache.seq, false);
	outbox_mark_emitted();
	return seq;
}

/*
 * UUID version 7 (RFC 9562, section 5.7).  The 12 bits behind the milliseconds
 * hold their fraction (section 6.2, method 3); a backend never goes back, not
 * even with the clock, so that its events sort by id as they were emitted.
 */
static void
make_id(TimestampTz now, pg_uuid_t *id)
{
	static uint64 last = 0;
	static uint8 pool[512];
	static size_t used = sizeof(pool);
	uint64		us;
	uint64		stamp;

	us = (uint64) now +
		(uint64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
	stamp = (us / 1000) << 12 | (us % 1000) * 4096 / 1000;
	if (stamp <= last)
		stamp = last + 1;
	last = stamp;

	/* Asking for eight bytes at a time costs more than all the rest. */
	if (used == sizeof(pool))
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values"),
					 errhint("The operating system's source of random numbers failed: try again.")));
		used = 0;
	}
	memcpy(id->data + 8, pool + used, 8);
	used += 8;

	id->data[0] = (uint8) (stamp >> 52);
	id->data[1] = (uint8) (stamp >> 44);
	id->data[2] = (uint8) (stamp >> 36);
	id->data[3] = (uint8) (stamp >> 28);
	id->data[4] = (uint8) (stamp >> 20);
	id->data[5] = (uint8) (stamp >> 12);
	id->data[6] = (uint8) (0x70 | ((stamp >> 8) & 0x0f));
	id->data[7] = (uint8) stamp;
	id->data[8] = (uint8) (0x80 | (id->data[8] & 0x3f));
}

/* ---------------------------------------------------------------------
 * Appending
 * ---------------------------------------------------------------------
 */

static void
set_column(TupleTableSlot *slot, int attnum, const void *value)
{
	slot->tts_values[attnum - 1] = PointerGetDatum(value);
	slot->tts_isnull[attnum - 1] = value == NULL;
}

static void
set_stamp(TupleTableSlot *slot, int attnum, Datum value)
{
	slot->tts_values[attnum - 1] = value;
	slot->tts_isnull[attnum - 1] = false;
}

static void
insert_index_entries(Relation rel, TupleTableSlot *slot)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *info = makeNode(ResultRelInfo);

	InitResultRelInfo(info, rel, 0, NULL, 0);
	ExecOpenIndices(info, false);
	outbox_insert_index_tuples(info, slot, estate);
	ExecCloseIndices(info);
	FreeExecutorState(estate);
}

/* Writes a checked event into the log and returns its id. */
static pg_uuid_t *
append_event(const OutboxNewEvent *e)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	FullTransactionId xid = GetTopFullTransactionId();
	int			piece = current_piece();
	Relation	rel = table_open(log_cache.pieces[piece], RowExclusiveLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	int64		epoch = outbox_current_epoch();
	int64		seq = next_seq();
	TimestampTz now = GetCurrentTimestamp();

	make_id(now, id);

	set_column(slot, Anum_id, id);
	set_stamp(slot, Anum_seq, Int64GetDatum(seq));
	set_stamp(slot, Anum_xid, FullTransactionIdGetDatum(xid));
	set_stamp(slot, Anum_epoch, Int64GetDatum(epoch));
	set_stamp(slot, Anum_created_at, TimestampTzGetDatum(now));
	set_stamp(slot, Anum_piece, Int16GetDatum(piece));
	set_column(slot, Anum_topic, e->topic);
	set_column(slot, Anum_type, e->type);
	set_column(slot, Anum_key, e->key);
	set_stamp(slot, Anum_expires_at, TimestampTzGetDatum(e->expires_at));
	slot->tts_isnull[Anum_expires_at - 1] = !e->expires;
	set_column(slot, Anum_headers, e->headers);
	set_column(slot, Anum_payload, e->payload);
	set_column(slot, Anum_body, e->body);
	set_column(slot, Anum_content_type, e->content_type);
	ExecStoreVirtualTuple(slot);

	table_tuple_insert(rel, slot, GetCurrentCommandId(true), 0, NULL);
	insert_index_entries(rel, slot);

	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	return id;
}

/* ---------------------------------------------------------------------
 * SQL functions
 * ---------------------------------------------------------------------
 */

/* NULL when the argument is. */
#define TEXT_ARG(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_TEXT_PP(n))
#define BYTEA_ARG(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_BYTEA_PP(n))
#define JSONB_ARG(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_JSONB_P(n))

/*
 * What emit() and emit_bytes() have in common; 'options' is the number of the
 * first optional argument.
 */
static Datum
emit(FunctionCallInfo fcinfo, OutboxNewEvent *e, const char *function, int options)
{
	PreventCommandIfReadOnly(function);

	e->topic = TEXT_ARG(0);
	e->key = TEXT_ARG(options);
	e->type = TEXT_ARG(options + 1);
	e->headers = JSONB_ARG(options + 2);
	e->expires = !PG_ARGISNULL(options + 3);
	if (e->expires)
		e->expires_at = PG_GETARG_TIMESTAMPTZ(options + 3);

	find_log();
	outbox_check(e, false);
	PG_RETURN_UUID_P(append_event(e));
}

/* jsonb's own errors say what is wrong with a text, but not what to do. */
static void
add_payload_hint(void *arg)
{
	(void) arg;
	if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_DATA_EXCEPTION)
		errhint("A payload is JSON that the type jsonb can hold. Use outbox.emit_bytes() to send anything else.");
}

/* The payload of an argument of type text or json. */
static Jsonb *
parse_payload(FunctionCallInfo fcinfo, int argno)
{
	ErrorContextCallback callback;
	Jsonb	   *payload;

	if (PG_ARGISNULL(argno))
		return NULL;

	callback.callback = add_payload_hint;
	callback.arg = NULL;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	payload = DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
												 CStringGetDatum(text_to_cstring(PG_GETARG_TEXT_PP(argno)))));
	error_context_stack = callback.previous;
	return payload;
}

Datum
outbox_emit_jsonb(PG_FUNCTION_ARGS)
{
	OutboxNewEvent e = {.payload = JSONB_ARG(1)};

	return emit(fcinfo, &e, "outbox.emit()", 2);
}

Datum
outbox_emit_text(PG_FUNCTION_ARGS)
{
	OutboxNewEvent e = {.payload = parse_payload(fcinfo, 1)};

	return emit(fcinfo, &e, "outbox.emit()", 2);
}

/* json is text that was checked already; jsonb is stricter. */
Datum
outbox_emit_json(PG_FUNCTION_ARGS)
{
	return outbox_emit_text(fcinfo);
}

Datum
outbox_emit_bytes(PG_FUNCTION_ARGS)
{
	OutboxNewEvent e = {.body = BYTEA_ARG(1), .content_type = TEXT_ARG(2)};

	if (e.body == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("body of an event must not be null"),
				 errhint("Pass the bytes to send; they may be empty.")));
	return emit(fcinfo, &e, "outbox.emit_bytes()", 3);
}

/* The CHECK constraint of outbox.events: true, or an error that says why not. */
Datum
outbox_check_event(PG_FUNCTION_ARGS)
{
	OutboxNewEvent e = {
		.topic = TEXT_ARG(0),
		.type = TEXT_ARG(1),
		.key = TEXT_ARG(2),
		.headers = JSONB_ARG(3),
		.payload = JSONB_ARG(4),
		.body = BYTEA_ARG(5),
		.content_type = TEXT_ARG(6)
	};

	outbox_check(&e, true);
	PG_RETURN_BOOL(true);
}

Datum
outbox_column_piece(PG_FUNCTION_ARGS)
{
	(void) fcinfo;
	PG_RETURN_INT16(current_piece());
}

Datum
outbox_column_seq(PG_FUNCTION_ARGS)
{
	(void) fcinfo;
	find_log();
	PG_RETURN_INT64(next_seq());
}

Datum
outbox_column_epoch(PG_FUNCTION_ARGS)
{
	(void) fcinfo;
	PG_RETURN_INT64(outbox_current_epoch());
}

Datum
outbox_column_id(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	(void) fcinfo;
	make_id(GetCurrentTimestamp(), id);
	PG_RETURN_UUID_P(id);
}

/*
 * BEFORE INSERT … FOR EACH ROW WHEN (NEW.id IS NULL): for those that send NULL
 * where they mean the default.
 */
Datum
outbox_fill_id(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	pg_uuid_t	id;
	int			attnum = Anum_id;
	Datum		value = UUIDPGetDatum(&id);
	bool		isnull = false;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.fill_id() must be called by a BEFORE INSERT FOR EACH ROW trigger"),
				 errhint("It belongs to outbox.events alone; leave the column out to get a new id.")));

	make_id(GetCurrentTimestamp(), &id);
	return PointerGetDatum(heap_modify_tuple_by_cols(trigger->tg_trigtuple,
													 RelationGetDescr(trigger->tg_relation),
													 1, &attnum, &value, &isnull));
}
