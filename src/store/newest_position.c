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
#define Anum_positions_generation 5

static int64
column(HeapTuple tuple, TupleDesc desc, int attnum)
{
	bool isnull;

	return DatumGetInt64(heap_getattr(tuple, attnum, desc, &isnull));
}

/*
 * Returns a copy of the endpoint's newest row in one table, or NULL.  'generation' -1: of
 * any generation.
 */
static HeapTuple
newest_in(Relation rel, Relation index, int32 endpoint_id, int64 generation,
		  Snapshot snapshot)
{
	TupleDesc	desc = RelationGetDescr(rel);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	found;

	ScanKeyInit(&key, Anum_positions_endpoint_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(endpoint_id));
	scan = systable_beginscan_ordered(rel, index, snapshot, 1, &key);
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
newest(Relation *rels, Relation *indexes, int32 endpoint_id, int64 generation,
	   Snapshot snapshot)
{
	HeapTuple best = NULL;

	for (int i = 0; i < PIECES; i++)
	{
		HeapTuple found = newest_in(rels[i], indexes[i], endpoint_id, generation,
									snapshot);

		if (best == NULL ||
			(found != NULL &&
			 column(found, RelationGetDescr(rels[i]), Anum_positions_number) >
				 column(best, RelationGetDescr(rels[0]), Anum_positions_number)))
			best = found;
	}
	return best;
}

/* The last shared position that a query was given.  It lives as long as the query. */
typedef struct Last
{
	int32	  endpoint_id;
	HeapTuple row;
} Last;

/* Remembers a row for the next call.  Most endpoints share one position. */
static void
remember(FmgrInfo *flinfo, int32 endpoint_id, HeapTuple row)
{
	MemoryContext old = MemoryContextSwitchTo(flinfo->fn_mcxt);
	Last		 *last = flinfo->fn_extra;

	if (last == NULL)
		flinfo->fn_extra = last = palloc(sizeof(Last));
	else
		heap_freetuple(last->row);
	last->endpoint_id = endpoint_id;
	last->row = heap_copytuple(row);
	MemoryContextSwitchTo(old);
}

/*
 * newest_position().  The rows that the caller's snapshot sees are gone if the table has
 * been emptied since, which MVCC does not cover.  The newest ones count then.  In a parallel
 * query, PostgreSQL would refuse the snapshot that sees them.
 */
OUTBOX_FUNCTION(outbox_newest_position_1_0, 2)
{
	int32	  endpoint_id = PG_GETARG_INT32(0);
	int64	  generation = PG_ARGISNULL(1) ? -1 : PG_GETARG_INT64(1);
	Oid		  schema = get_namespace_oid(OUTBOX_SCHEMA, false);
	Relation  rels[PIECES];
	Relation  indexes[PIECES];
	HeapTuple found;
	HeapTuple result = NULL;
	TupleDesc desc;
	Last	 *last = fcinfo->flinfo->fn_extra;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	if (generation == -1 && last != NULL && last->endpoint_id == endpoint_id)
		PG_RETURN_DATUM(HeapTupleGetDatum(last->row));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	for (int i = 0; i < PIECES; i++)
	{
		rels[i] = table_open(get_relname_relid(i ? "positions_1" : "positions_0", schema),
							 AccessShareLock);
		(void) RelationGetIndexList(rels[i]);
		indexes[i] = index_open(rels[i]->rd_pkindex, AccessShareLock);
	}
	found = newest(rels, indexes, endpoint_id, generation, GetActiveSnapshot());
	if (found == NULL)
	{
		Snapshot latest = RegisterSnapshot(GetLatestSnapshot());

		found = newest(rels, indexes, endpoint_id, generation, latest);
		UnregisterSnapshot(latest);
	}
	if (found != NULL)
	{
		Datum *values = palloc(sizeof(Datum) * desc->natts);
		bool  *nulls = palloc(sizeof(bool) * desc->natts);

		heap_deform_tuple(found, RelationGetDescr(rels[0]), values, nulls);
		result = heap_form_tuple(BlessTupleDesc(desc), values, nulls);
	}
	for (int i = 0; i < PIECES; i++)
	{
		index_close(indexes[i], AccessShareLock);
		table_close(rels[i], AccessShareLock);
	}
	if (result == NULL)
		PG_RETURN_NULL();
	if (generation == -1)
		remember(fcinfo->flinfo, endpoint_id, result);
	PG_RETURN_DATUM(HeapTupleGetDatum(result));
}
