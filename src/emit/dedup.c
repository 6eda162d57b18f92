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

#include "access/table.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/compat.h"
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

/* The parameters of a claim's two statements: topic, key, expiry, id, now, tenant. */
#define NCLAIM 6
static Oid claim_types[NCLAIM] = {TEXTOID, TEXTOID,		   TIMESTAMPTZOID,
								  UUIDOID, TIMESTAMPTZOID, TEXTOID};

/*
 * True if the key belongs to an event.  Its id is stored in 'id'.
 *
 * The primary key is used, whatever the planner's statistics say.  If VACUUM has found
 * the table empty, a transaction with many emits would otherwise read all of its own
 * keys for each emit.
 */
static bool
find(Datum *values, pg_uuid_t *id)
{
	static SPIPlanPtr plan;
	int				  level = NewGUCNestLevel();
	bool			  isnull;
	Datum			  first;
	uint64			  n;

	(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	n = outbox_plan_run(&plan,
						"SELECT d.event_id FROM outbox.dedup d"
						" WHERE d.topic OPERATOR(pg_catalog.=) $1"
						" AND d.dedup_key OPERATOR(pg_catalog.=) $2"
						" AND d.tenant OPERATOR(pg_catalog.=) $6"
						" AND d.created_at OPERATOR(pg_catalog.>) $3",
						NCLAIM, claim_types, values, NULL);
	AtEOXact_GUC(true, level);
	if (n == 0)
		return false;
	first = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	memcpy(id, DatumGetUUIDP(first), sizeof(pg_uuid_t));
	return true;
}

#define INSERT_KEY \
	"INSERT INTO outbox.dedup AS d (topic, dedup_key, event_id, created_at, tenant)" \
	" VALUES ($1, $2, $4, $5, $6) ON CONFLICT (topic, dedup_key, tenant) DO "

/* True if the key is new. */
static bool
insert(Datum *values)
{
	static SPIPlanPtr plan;

	return outbox_plan_run(&plan, INSERT_KEY "NOTHING", NCLAIM, claim_types, values,
						   NULL) > 0;
}

/* True if the key belonged to an event of long ago, or to none any more. */
static bool
take_over(Datum *values)
{
	static SPIPlanPtr plan;

	return outbox_plan_run(
			   &plan,
			   INSERT_KEY
			   "UPDATE"
			   " SET event_id = EXCLUDED.event_id, created_at = EXCLUDED.created_at"
			   " WHERE d.created_at OPERATOR(pg_catalog.<=) $3",
			   NCLAIM, claim_types, values, NULL) > 0;
}

/* Claims a key, in an SPI connection, as the owner of the log. */
static bool
claim(const OutboxNewEvent *e, pg_uuid_t *id)
{
	TimestampTz now = GetCurrentTimestamp();
	Datum		values[] = {PointerGetDatum(e->topic),
							PointerGetDatum(e->dedup_key),
							TimestampTzGetDatum(expiry(now)),
							UUIDPGetDatum(id),
							TimestampTzGetDatum(now),
						e->tenant ? PointerGetDatum(e->tenant) : CStringGetTextDatum("")};

	/*
	 * The insert comes first, because it reads nothing that a SERIALIZABLE transaction
	 * would conflict with.  A duplicate is searched next, because that locks no row.  If
	 * another transaction's claim is committed between two statements, the last one does
	 * nothing, and the search finds the claim in the next round.
	 */
	while (!insert(values))
	{
		if (find(values, id))
			return false;
		if (take_over(values))
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
	static SPIPlanPtr plan;
	Datum			  values[] = {begin, end, TimestampTzGetDatum(now),
								  TimestampTzGetDatum(now + USECS_PER_SEC)};

	(void) outbox_plan_run(&plan,
						   "UPDATE outbox.dedup SET created_at = $3"
						   " WHERE ctid = ANY (ARRAY("
						   "SELECT d.ctid FROM outbox.dedup d"
						   " WHERE d.ctid >= $1"
						   " AND d.ctid < $2"
						   " AND d.created_at > $4"
						   " FOR UPDATE SKIP LOCKED))",
						   4, (Oid[]){TIDOID, TIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
						   values, NULL);
}

/* Keys that another transaction is overwriting are skipped. */
static void
sweep_blocks(BlockNumber first, TimestampTz now)
{
	ItemPointerData	  begin;
	ItemPointerData	  end;
	static SPIPlanPtr plan;
	Datum			  values[3];

	ItemPointerSet(&begin, first, 0);
	ItemPointerSet(&end, first + SWEEP_BLOCKS, 0);
	values[0] = PointerGetDatum(&begin);
	values[1] = PointerGetDatum(&end);
	values[2] = TimestampTzGetDatum(expiry(now));
	(void) outbox_plan_run(&plan,
						   "DELETE FROM outbox.dedup WHERE ctid = ANY (ARRAY("
						   "SELECT d.ctid FROM outbox.dedup d"
						   " WHERE d.ctid >= $1"
						   " AND d.ctid < $2"
						   " AND d.created_at <= $3"
						   " FOR UPDATE SKIP LOCKED))",
						   3, (Oid[]){TIDOID, TIDOID, TIMESTAMPTZOID}, values, NULL);
	correct_times(values[0], values[1], now);
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
