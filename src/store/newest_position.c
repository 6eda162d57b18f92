/*
 * newest_position.c
 *	  Owns outbox.newest_position(): the stored position of an endpoint, for the views.
 *
 * A query would keep its locks on outbox.positions until its transaction ends, and hold up
 * the compaction, which empties a table.  On a standby it would hold up the replay of that,
 * and be cancelled for it.  This function gives its locks back when it returns.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "funcapi.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/version.h"

#define PIECES 2

/* The columns that are read here. */
#define Anum_positions_number 2
#define Anum_positions_endpoint_id 3
#define Anum_positions_shared 4
#define Anum_positions_generation 5
#define Anum_positions_read_tick 6 /* the first column of the cursor */
#define Anum_positions_last_seq 13 /* the last one */

static int64
column(HeapTuple tuple, TupleDesc desc, int attnum)
{
	bool isnull;

	return DatumGetInt64(heap_getattr(tuple, attnum, desc, &isnull));
}

/* The tables, and the snapshot that reads them. */
typedef struct Positions
{
	Relation rels[PIECES];
	Relation indexes[PIECES];
	Snapshot snapshot;
} Positions;

/*
 * Returns a copy of the endpoint's newest row in one table, or NULL.  'generation' -1: of
 * any generation.
 */
static HeapTuple
newest_in(const Positions *p, int piece, int32 endpoint_id, int64 generation)
{
	Relation	rel = p->rels[piece];
	TupleDesc	desc = RelationGetDescr(rel);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	found;

	ScanKeyInit(&key, Anum_positions_endpoint_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(endpoint_id));
	scan = systable_beginscan_ordered(rel, p->indexes[piece], p->snapshot, 1, &key);
	do
	{
		CHECK_FOR_INTERRUPTS();
		found = systable_getnext_ordered(scan, BackwardScanDirection);
	} while (found != NULL && generation != -1 &&
			 column(found, desc, Anum_positions_generation) != generation);
	if (found != NULL)
		found = HeapTupleHasExternal(found) ? toast_flatten_tuple(found, desc) :
											  heap_copytuple(found);
	systable_endscan_ordered(scan);
	return found;
}

static HeapTuple
newest(const Positions *p, int32 endpoint_id, int64 generation)
{
	TupleDesc desc = RelationGetDescr(p->rels[0]);
	HeapTuple best = NULL;

	for (int i = 0; i < PIECES; i++)
	{
		HeapTuple found = newest_in(p, i, endpoint_id, generation);

		if (best == NULL ||
			(found != NULL &&
			 column(found, desc, Anum_positions_number) >
				 column(best, desc, Anum_positions_number)))
			best = found;
	}
	return best;
}

/*
 * The shared row that a query has read last, with its own snapshot.  Most endpoints
 * share one.
 */
typedef struct Last
{
	int32	  id;
	HeapTuple row;
} Last;

static HeapTuple
newest_shared(const Positions *p, int32 id, FmgrInfo *flinfo)
{
	Last		 *last = flinfo->fn_extra;
	HeapTuple	  found;
	MemoryContext old;

	if (p->snapshot != GetActiveSnapshot())
		return newest(p, id, -1);
	if (last != NULL && last->id == id)
		return last->row;
	found = newest(p, id, -1);
	if (found == NULL)
		return NULL;
	old = MemoryContextSwitchTo(flinfo->fn_mcxt);
	if (last == NULL)
		flinfo->fn_extra = last = palloc(sizeof(Last));
	else
		heap_freetuple(last->row);
	last->id = id;
	last->row = heap_copytuple(found);
	MemoryContextSwitchTo(old);
	return last->row;
}

/*
 * Reads the endpoint's newest row, with the cursor of the shared row that it follows.
 * False: this snapshot does not see both.
 */
static bool
read_position(const Positions *p, int32 endpoint_id, int64 generation, FmgrInfo *flinfo,
			  Datum *values, bool *nulls)
{
	TupleDesc desc = RelationGetDescr(p->rels[0]);
	HeapTuple own = newest(p, endpoint_id, generation);
	HeapTuple shared;

	if (own == NULL)
		return false;
	heap_deform_tuple(own, desc, values, nulls);
	if (nulls[Anum_positions_shared - 1])
		return true;
	shared = newest_shared(p, DatumGetInt32(values[Anum_positions_shared - 1]), flinfo);
	if (shared == NULL)
		return false;
	for (int i = Anum_positions_read_tick; i <= Anum_positions_last_seq; i++)
		values[i - 1] = heap_getattr(shared, i, desc, &nulls[i - 1]);
	return true;
}

/*
 * newest_position().  The rows that the caller's snapshot sees are gone if the table has
 * been emptied since, which MVCC does not cover.  The newest ones count then, all of one
 * moment: an endpoint goes on, and so does the row that it followed.  In a parallel
 * query, PostgreSQL would refuse the snapshot that sees them.
 */
OUTBOX_FUNCTION(outbox_newest_position_1_0, 2)
{
	int32	  endpoint_id = PG_GETARG_INT32(0);
	int64	  generation = PG_ARGISNULL(1) ? -1 : PG_GETARG_INT64(1);
	Oid		  schema = get_namespace_oid(OUTBOX_SCHEMA, false);
	Positions p;
	TupleDesc desc;
	Datum	 *values;
	bool	 *nulls;
	bool	  found;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values = palloc(sizeof(Datum) * desc->natts);
	nulls = palloc(sizeof(bool) * desc->natts);

	for (int i = 0; i < PIECES; i++)
	{
		p.rels[i] = table_open(get_relname_relid(i ? "positions_1" : "positions_0",
												 schema),
							   AccessShareLock);
		(void) RelationGetIndexList(p.rels[i]);
		p.indexes[i] = index_open(p.rels[i]->rd_pkindex, AccessShareLock);
	}
	p.snapshot = GetActiveSnapshot();
	found = read_position(&p, endpoint_id, generation, fcinfo->flinfo, values, nulls);
	if (!found)
	{
		p.snapshot = RegisterSnapshot(GetLatestSnapshot());
		found = read_position(&p, endpoint_id, generation, fcinfo->flinfo, values, nulls);
		UnregisterSnapshot(p.snapshot);
	}
	for (int i = 0; i < PIECES; i++)
	{
		index_close(p.indexes[i], AccessShareLock);
		table_close(p.rels[i], AccessShareLock);
	}
	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(
		HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
