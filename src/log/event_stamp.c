/*
 * event_stamp.c
 *	  Owns the values that an event is stamped with when it enters the log: piece, epoch
 *	  and id.  Also finds the tables of the log.  emit() calls these functions directly.
 *	  A plain INSERT calls them through the column defaults.
 */
#include "base/outbox.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "port/atomics.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/uuid.h"
#include "utils/xid8.h"

#include "base/table_rows.h"
#include "base/version.h"
#include "log/event_stamp.h"
#include "server/shmem.h"

static const char *const event_columns[] = {"id",	   "seq",		 "xid",
											"epoch",   "created_at", "piece",
											"topic",   "type",		 "key",
											"tenant",  "expires_at", "headers",
											"payload", "body",		 "content_type"};

static const char *const scheduled_columns[] = {"id",		  "deliver_at",	  "xid",
												"epoch",	  "created_at",	  "topic",
												"type",		  "key",		  "tenant",
												"expires_at", "headers",	  "payload",
												"body",		  "content_type", "dedup_key",
												"failed_at",  "retry_at",	  "error"};

StaticAssertDecl(lengthof(event_columns) == Natts_events, "columns of outbox.events");
StaticAssertDecl(lengthof(scheduled_columns) == Natts_scheduled,
				 "columns of outbox.scheduled");

/* The columns of outbox.origins that are read here. */
#define Anum_origins_epoch 1
#define Anum_origins_system_identifier 2
#define Anum_origins_database_oid 3
#define Anum_origins_adopted_by 4
#define Anum_origins_first 5

/*
 * Invalidated when one of the tables changes in the relation cache.  That includes
 * DROP EXTENSION, so a backend finds the tables of a new CREATE EXTENSION.
 */
static OutboxLogTables log_tables;
static bool			   log_valid;

/* A row of outbox.origins. */
typedef struct Origin
{
	int64 epoch;
	int64 adopted_by; /* 0: it is open */
	bool  first;
} Origin;

/* The rows of outbox.origins, as this session has read them. */
typedef struct Origins
{
	int64	current; /* the epoch of a new event */
	bool	zero;	 /* epoch 0 is that of the logs that are not adopted */
	bool	lost;	 /* rows are missing ... */
	uint64	lost_at; /* ... and events of theirs lie here (0: at their own xid) */
	int		n;
	Origin *rows;
} Origins;

static Origins		 origins;
static bool			 origins_valid;
static MemoryContext origins_cxt;

/* How many; a value that was read meanwhile is not cached. */
static uint64 invalidations;

/* ---------------------------------------------------------------------
 * Where the log is
 * ---------------------------------------------------------------------
 */

static void
relation_changed(Datum arg, Oid relid)
{
	bool ours = !OidIsValid(relid) || relid == log_tables.events ||
		relid == log_tables.seq || relid == log_tables.origins ||
		relid == log_tables.scheduled;

	for (int i = 0; i < OUTBOX_LOG_PIECES; i++)
		ours |= relid == log_tables.pieces[i];
	if (ours)
	{
		log_valid = false;
		origins_valid = false;
		invalidations++;
	}
}

static Oid
find_relation(Oid schema, const char *name)
{
	Oid relid = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;

	/* DROP EXTENSION would lose the events, so no hint says it. */
	if (!OidIsValid(relid))
		ereport(
			ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("relation \"%s.%s\" does not exist", OUTBOX_SCHEMA, name),
			 !OidIsValid(get_extension_oid("outbox", true)) ?
				 errhint(
					 "The extension is not installed in this database. Run CREATE EXTENSION outbox;") :
				 errhint(
					 "The extension's schema or this object of it was renamed or removed. Rename it back: ALTER SCHEMA name RENAME TO %s. \\dx outbox shows the present name of the schema.",
					 OUTBOX_SCHEMA)));
	return relid;
}

/* A library must not write into tables of another version. */
static Oid
find_table(Oid schema, const char *name, const char *const *columns, int n)
{
	Oid	 relid = find_relation(schema, name);
	bool same = true;

	outbox_expect_no_more_columns(relid, n);
	for (int i = 0; same && i < n; i++)
		same = get_attnum(relid, columns[i]) == i + 1;
	if (!same)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg(
				 "table \"%s.%s\" is not of the version that the library of outbox serves",
				 OUTBOX_SCHEMA, name),
			 outbox_version_hint()));
	return relid;
}

const OutboxLogTables *
outbox_log_tables(void)
{
	static bool registered = false;
	uint64		before;
	Oid			schema;

	if (log_valid)
		return &log_tables;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		registered = true;
	}

	before = invalidations;
	schema = get_namespace_oid(OUTBOX_SCHEMA, true);
	log_tables.events = find_relation(schema, "events");
	log_tables.seq = find_relation(schema, "events_seq");
	log_tables.origins = find_relation(schema, "origins");
	for (int i = 0; i < OUTBOX_LOG_PIECES; i++)
	{
		char name[NAMEDATALEN];

		snprintf(name, sizeof(name), "events_%d", i);
		log_tables.pieces[i] = find_table(schema, name, event_columns,
										  lengthof(event_columns));
	}
	log_tables.scheduled = find_table(schema, "scheduled", scheduled_columns,
									  lengthof(scheduled_columns));
	log_valid = before == invalidations;
	return &log_tables;
}

/*
 * While a session waits for the lock, the extension may be dropped, and made again.  So
 * the table is looked up again, as that of a plain INSERT is.
 */
Relation
outbox_log_table_open(const Oid *relid, LOCKMODE mode)
{
	for (;;)
	{
		Relation rel;

		(void) outbox_log_tables();
		rel = try_relation_open(*relid, mode);
		if (rel != NULL)
			return rel;
		log_valid = false;
	}
}

Relation
outbox_table_open(const char *name, LOCKMODE mode)
{
	for (;;)
	{
		Oid		 schema = get_namespace_oid(OUTBOX_SCHEMA, true);
		Relation rel = try_relation_open(find_relation(schema, name), mode);

		if (rel != NULL)
			return rel;
	}
}

/* The owner of outbox.events; InvalidOid if the table was just dropped. */
static Oid
log_owner(void)
{
	HeapTuple tuple;
	Oid		  owner = InvalidOid;

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(outbox_log_tables()->events));
	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
	}
	return owner;
}

OutboxCaller
outbox_become_log_owner(void)
{
	OutboxCaller caller;

	GetUserIdAndSecContext(&caller.user, &caller.context);
	SetUserIdAndSecContext(log_owner(), caller.context | SECURITY_LOCAL_USERID_CHANGE);
	return caller;
}

void
outbox_become_caller(OutboxCaller caller)
{
	SetUserIdAndSecContext(caller.user, caller.context);
}

/* Without shared memory, the first piece. */
int
outbox_current_piece(void)
{
	OutboxDatabase *db = outbox_shared ? outbox_database_slot(MyDatabaseId, false) : NULL;
	uint32			piece = db ? pg_atomic_read_u32(&db->piece) : 0;

	return Min(piece, OUTBOX_LOG_PIECES - 1);
}

/* True if the table has a row, and its first column this epoch (0: any value). */
static bool
has_row(const char *table, int64 epoch, Snapshot snapshot)
{
	Relation		rel = outbox_table_open(table, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc	scan = table_beginscan_strat(rel, snapshot, 0, NULL, true, true);
	bool			found = false;
	bool			isnull;

	while (!found && table_scan_getnextslot(scan, ForwardScanDirection, slot))
		found = epoch == 0 || DatumGetInt64(slot_getattr(slot, 1, &isnull)) == epoch;
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	return found;
}

/* True if a log came before that of this row, and its row is missing. */
static bool
lacks_predecessor(const Origin *o)
{
	if (o->first)
		return false;
	for (int i = 0; i < origins.n; i++)
		if (origins.rows[i].adopted_by == o->epoch)
			return false;
	return true;
}

/*
 * Reads with the latest snapshot, not the transaction's.  A REPEATABLE READ
 * transaction that is older than the epoch writes events of that epoch, too.
 *
 * The log belongs to this database if exactly one origin has not been adopted, it names
 * this system and database, and it was not restored.  An origin is made before the first
 * endpoint, and stays: where there are endpoints and no origin, rows were removed.  That
 * is judged by one snapshot, and not cached: no endpoint's row says that it changed.
 */
static void
read_origins(void)
{
	uint64			before = invalidations;
	Relation		rel;
	Snapshot		snapshot;
	TableScanDesc	scan;
	TupleTableSlot *slot;
	int				max = 0;
	int				open = 0;
	int				ours = 0;

	if (origins_cxt == NULL)
		origins_cxt = AllocSetContextCreate(TopMemoryContext, "outbox origins",
											ALLOCSET_SMALL_SIZES);
	MemoryContextReset(origins_cxt);
	memset(&origins, 0, sizeof(origins));

	rel = outbox_log_table_open(&log_tables.origins, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan_strat(rel, snapshot, 0, NULL, true, true);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool   isnull;
		Datum  adopted_by;
		Origin o;

		slot_getsomeattrs(slot, Anum_origins_first);
		o.epoch = DatumGetInt64(slot_getattr(slot, Anum_origins_epoch, &isnull));
		o.first = DatumGetBool(slot_getattr(slot, Anum_origins_first, &isnull));
		adopted_by = slot_getattr(slot, Anum_origins_adopted_by, &isnull);
		o.adopted_by = isnull ? 0 : DatumGetInt64(adopted_by);
		outbox_room(origins.rows, origins.n, max, origins_cxt);
		origins.rows[origins.n++] = o;
		if (o.adopted_by != 0)
			continue;
		open++;
		origins.zero |= o.first;
		if ((uint64) DatumGetInt64(slot_getattr(slot, Anum_origins_system_identifier,
												&isnull)) == GetSystemIdentifier() &&
			DatumGetObjectId(slot_getattr(slot, Anum_origins_database_oid, &isnull)) ==
				MyDatabaseId)
		{
			ours++;
			origins.current = o.epoch;
		}
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);

	if (open == 0)
	{
		origins.current = 0;
		origins.zero = true;
		origins.lost = origins.n > 0 || has_row("endpoint_settings", 0, snapshot);
	}
	for (int i = 0; i < origins.n; i++)
		origins.lost |= lacks_predecessor(&origins.rows[i]);
	if (open > 0)
		origins.lost_at = FirstNormalTransactionId;
	if (origins.lost || (open > 0 && (open != 1 || ours != 1)) ||
		(ours == 1 && !has_row("own_epochs", origins.current, snapshot)))
		origins.current = OUTBOX_EPOCH_OF_COPY;
	UnregisterSnapshot(snapshot);

	/* If something changed meanwhile, it is read again next time. */
	origins_valid = origins.n > 0 && before == invalidations;
}

int64
outbox_current_epoch(void)
{
	(void) outbox_log_tables();
	if (!origins_valid)
		read_origins();
	return origins.current;
}

/*
 * A position is a snapshot, and a snapshot concerns only xids of its own system.  An
 * adopted log may have brought events that were not undelivered at that time.  They
 * lie before everything else: at an xid that every snapshot sees except that of the
 * beginning.  Events written in a copy lie after everything, until the copy is
 * adopted.
 */
uint64
outbox_log_xid(int64 epoch, uint64 xid)
{
	int64 current = outbox_current_epoch();

	if (epoch == current && epoch > 0)
		return xid;
	if (epoch == OUTBOX_EPOCH_OF_COPY)
		return current == OUTBOX_EPOCH_OF_COPY ? PG_UINT64_MAX : 0;
	if (epoch == 0)
		return origins.zero ? xid : FirstNormalTransactionId;
	for (int i = 0; i < origins.n; i++)
		if (origins.rows[i].epoch == epoch)
			return origins.rows[i].adopted_by != 0 ? FirstNormalTransactionId : xid;
	if (!origins.lost)
		return 0;
	return origins.lost_at != 0 ? origins.lost_at : xid;
}

/* ---------------------------------------------------------------------
 * Stamps
 * ---------------------------------------------------------------------
 */

/*
 * UUID version 7 (RFC 9562, section 5.7).  The 12 bits behind the milliseconds hold
 * their fraction (section 6.2, method 3).  Within a backend the value never decreases,
 * even if the clock is set back.  So a backend's events sort by id in the order of
 * their emits.
 */
void
outbox_make_id(TimestampTz now, pg_uuid_t *id)
{
	static uint64 last = 0;
	static uint8  pool[512];
	static size_t used = sizeof(pool);
	uint64		  us;
	uint64		  stamp;

	us = (uint64) now +
		(uint64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
	stamp = (us / 1000) << 12 | (us % 1000) * 4096 / 1000;
	if (stamp <= last)
		stamp = last + 1;
	last = stamp;

	/* Asking for eight bytes each time would cost more than all the rest. */
	if (used == sizeof(pool))
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(
				ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values"),
				 errhint(
					 "The operating system's source of random numbers failed. Try again.")));
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
 * Column defaults
 * ---------------------------------------------------------------------
 */

OUTBOX_FUNCTION(outbox_column_piece_1_0, 0)
{
	PG_RETURN_INT16(outbox_current_piece());
}

Jsonb *
outbox_headers_or_null(Jsonb *headers)
{
	JsonbValue v;

	return headers && JsonbExtractScalar(&headers->root, &v) && v.type == jbvNull ?
		NULL :
		headers;
}

OUTBOX_FUNCTION(outbox_column_epoch_1_0, 0)
{
	PG_RETURN_INT64(outbox_current_epoch());
}

/* log_xid() */
OUTBOX_FUNCTION(outbox_log_xid_1_0, 2)
{
	uint64 xid = outbox_log_xid(PG_GETARG_INT64(0),
								U64FromFullTransactionId(PG_GETARG_FULLTRANSACTIONID(1)));

	if (xid == 0)
		PG_RETURN_NULL();
	PG_RETURN_FULLTRANSACTIONID(FullTransactionIdFromU64(xid));
}

OUTBOX_FUNCTION(outbox_column_id_1_0, 0)
{
	pg_uuid_t *id = palloc(sizeof(pg_uuid_t));

	outbox_make_id(GetCurrentTimestamp(), id);
	PG_RETURN_UUID_P(id);
}

/*
 * BEFORE INSERT … FOR EACH ROW WHEN (NEW.id IS NULL): for clients that send NULL where
 * they mean the default.
 */
OUTBOX_FUNCTION(outbox_fill_id_1_0, 0)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	pg_uuid_t	 id;
	int			 attnum = Anum_events_id;
	Datum		 value = UUIDPGetDatum(&id);
	bool		 isnull = false;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		ereport(
			ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg(
				 "outbox.fill_id() must be called by a BEFORE INSERT FOR EACH ROW trigger"),
			 errhint(
				 "It is only for outbox.events. Leave the column out to get a new id.")));

	outbox_make_id(GetCurrentTimestamp(), &id);
	return PointerGetDatum(
		heap_modify_tuple_by_cols(trigger->tg_trigtuple,
								  RelationGetDescr(trigger->tg_relation), 1, &attnum,
								  &value, &isnull));
}
