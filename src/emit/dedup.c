/*
 * dedup.c
 *	  Owns the deduplication keys in outbox.dedup.  Gives each key to one event, and
 *	  deletes it when its time is over.
 *
 * The primary key makes concurrent emits of one key agree: the second INSERT waits
 * until the first transaction has committed or rolled back.  A transaction whose
 * snapshot is older than the key fails with 40001, as it would on any row that another
 * transaction has changed.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "base/settings.h"
#include "emit/dedup.h"
#include "log/event_stamp.h"
#include "log/transaction.h"
#include "server/shmem.h"

/*
 * Keys are deleted in passes over the table, in the order of its blocks.  So emit()
 * need not maintain an index for that.  A pass begins when an eighth of the window is
 * over, and rests after a few blocks.
 */
#define PASSES_PER_WINDOW 8
#define SWEEP_BLOCKS 32
#define SWEEP_EVERY (100 * 1000) /* µs */

static BlockNumber sweep_block; /* the first block that the pass has not read */
static TimestampTz pass_at;		/* when it began */
static TimestampTz sweep_at;	/* the next blocks are not read before */

/* A key that was claimed at this time or before counts no more. */
static TimestampTz
expiry(TimestampTz now)
{
	return now - (int64) outbox_dedup_window * USECS_PER_SEC;
}

#define Anum_dedup_topic 1
#define Anum_dedup_key 2
#define Anum_dedup_tenant 3
#define Anum_dedup_event_id 4
#define Anum_dedup_created_at 5

/* The arguments of a claim's statements. */
typedef struct Claim
{
	OutboxArg topic;
	OutboxArg key;
	OutboxArg expiry;
	OutboxArg id;
	OutboxArg now;
	OutboxArg tenant;
} Claim;

#define ARGS_OF(c) (c)->topic, (c)->key, (c)->expiry, (c)->id, (c)->now, (c)->tenant

/*
 * True if the key belongs to an event.  Its id is stored in 'id'.
 *
 * The row is read as it is now.  With the snapshot of a SERIALIZABLE transaction, all keys
 * of the index's page would count as read, and one that another transaction adds there
 * as a conflict.
 */
static bool
find(const Claim *c, pg_uuid_t *id)
{
	Relation	rel = outbox_table_open("dedup", AccessShareLock);
	TupleDesc	desc = RelationGetDescr(rel);
	Oid			index = get_relname_relid("dedup_pkey", RelationGetNamespace(rel));
	ScanKeyData key[3];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		isnull;
	bool		found;

	ScanKeyInit(&key[0], Anum_dedup_topic, BTEqualStrategyNumber, F_TEXTEQ,
				c->topic.value);
	ScanKeyInit(&key[1], Anum_dedup_key, BTEqualStrategyNumber, F_TEXTEQ, c->key.value);
	ScanKeyInit(&key[2], Anum_dedup_tenant, BTEqualStrategyNumber, F_TEXTEQ,
				c->tenant.value);
	scan = systable_beginscan(rel, index, OidIsValid(index), SnapshotSelf, lengthof(key),
							  key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple) &&
		DatumGetTimestampTz(heap_getattr(tuple, Anum_dedup_created_at, desc, &isnull)) >
			DatumGetTimestampTz(c->expiry.value);
	if (found)
		memcpy(id, DatumGetUUIDP(heap_getattr(tuple, Anum_dedup_event_id, desc, &isnull)),
			   sizeof(pg_uuid_t));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

#define INSERT_KEY \
	"INSERT INTO outbox.dedup AS d (topic, dedup_key, event_id, created_at, tenant)" \
	" VALUES ($1, $2, $4, $5, $6) ON CONFLICT (topic, dedup_key, tenant) DO "

/* True if the key is new. */
static bool
insert(const Claim *c)
{
	return outbox_plan_run(INSERT_KEY "NOTHING", ARGS_OF(c)) > 0;
}

/* True if the key belonged to an event of long ago, or to none any more. */
static bool
take_over(const Claim *c)
{
	return outbox_plan_run(
			   INSERT_KEY
			   "UPDATE"
			   " SET event_id = EXCLUDED.event_id, created_at = EXCLUDED.created_at"
			   " WHERE d.created_at OPERATOR(pg_catalog.<=) $3",
			   ARGS_OF(c)) > 0;
}

/* Claims a key, in an SPI connection, as the owner of the log. */
static bool
claim(const OutboxNewEvent *e, pg_uuid_t *id)
{
	TimestampTz now = GetCurrentTimestamp();
	Claim		c = {.topic = arg_datum(TEXTOID, PointerGetDatum(e->topic)),
					 .key = arg_datum(TEXTOID, PointerGetDatum(e->dedup_key)),
					 .expiry = arg_time(expiry(now)),
					 .id = arg_datum(UUIDOID, UUIDPGetDatum(id)),
					 .now = arg_time(now),
					 .tenant = e->tenant ? arg_datum(TEXTOID, PointerGetDatum(e->tenant)) :
										   arg_text("")};

	/*
	 * The insert comes first, because it reads nothing that a SERIALIZABLE transaction
	 * would conflict with.  A duplicate is searched next, because that locks no row.  If
	 * another transaction's claim is committed between two statements, the last one does
	 * nothing, and the search finds the claim in the next round.
	 */
	while (!insert(&c))
	{
		if (find(&c, id))
			return false;
		if (take_over(&c))
			return true;
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

bool
outbox_dedup_claim(const OutboxNewEvent *e, pg_uuid_t *id)
{
	OutboxCaller caller = outbox_become_log_owner();
	bool		 claimed;

	SPI_connect();
	claimed = claim(e, id);
	OUTBOX_CRASH_POINT("emit.claimed");
	SPI_finish();
	outbox_become_caller(caller);
	if (!claimed)
		outbox_count_total(OUTBOX_COUNT_DEDUPLICATED, 1);
	return claimed;
}

/* ---------------------------------------------------------------------
 * Deletion, in the worker
 * ---------------------------------------------------------------------
 */

TimestampTz
outbox_dedup_next_time(void)
{
	int64 pause = (int64) outbox_dedup_window * USECS_PER_SEC / PASSES_PER_WINDOW;

	return sweep_block > 0 ? sweep_at : Max(sweep_at, pass_at + pause);
}

/*
 * A key that was claimed while the clock was ahead gets the present time.  Otherwise
 * it would suppress emits for as long as the clock was ahead.  The time of an emit
 * that is running may be a moment later than this process's time.
 */
static void
correct_times(Datum begin, Datum end, TimestampTz now)
{
	(void) outbox_plan_run("UPDATE outbox.dedup SET created_at = $3"
						   " WHERE ctid = ANY (ARRAY("
						   "SELECT d.ctid FROM outbox.dedup d"
						   " WHERE d.ctid >= $1 AND d.ctid < $2 AND d.created_at > $4"
						   " FOR UPDATE SKIP LOCKED))",
						   arg_datum(TIDOID, begin), arg_datum(TIDOID, end),
						   arg_time(now), arg_time(now + USECS_PER_SEC));
}

/* Keys that another transaction is overwriting are skipped. */
static void
sweep_blocks(BlockNumber first, TimestampTz now)
{
	ItemPointerData begin;
	ItemPointerData end;

	ItemPointerSet(&begin, first, 0);
	ItemPointerSet(&end, first + SWEEP_BLOCKS, 0);
	(void) outbox_plan_run("DELETE FROM outbox.dedup WHERE ctid = ANY (ARRAY("
						   "SELECT d.ctid FROM outbox.dedup d"
						   " WHERE d.ctid >= $1 AND d.ctid < $2 AND d.created_at <= $3"
						   " FOR UPDATE SKIP LOCKED))",
						   arg_datum(TIDOID, PointerGetDatum(&begin)),
						   arg_datum(TIDOID, PointerGetDatum(&end)),
						   arg_time(expiry(now)));
	correct_times(PointerGetDatum(&begin), PointerGetDatum(&end), now);
}

/* The next attempt begins behind the blocks that failed. */
void
outbox_dedup_failed(void)
{
	sweep_block += SWEEP_BLOCKS;
}

void
outbox_dedup_sweep(void *arg)
{
	TimestampTz now = *(TimestampTz *) arg;
	Oid			table = outbox_table_oid(OUTBOX_TABLE_DEDUP);
	Relation	rel;
	BlockNumber blocks;

	sweep_at = now + SWEEP_EVERY;
	if (!outbox_txn_begin(true))
		return;
	if (!ConditionalLockRelationOid(table, RowExclusiveLock))
	{
		outbox_txn_abort();
		return;
	}

	if (sweep_block == 0)
		pass_at = now;
	rel = table_open(table, NoLock);
	blocks = RelationGetNumberOfBlocks(rel);
	table_close(rel, NoLock);
	if (sweep_block < blocks)
		sweep_blocks(sweep_block, now);
	OUTBOX_CRASH_POINT("dedup.swept");
	outbox_txn_commit();

	sweep_block = sweep_block + SWEEP_BLOCKS < blocks ? sweep_block + SWEEP_BLOCKS : 0;
}
