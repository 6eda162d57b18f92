/*
 * row.c
 *	  Owns how rows are appended to the extension's tables, and how numbers
 *	  become an array.
 */
#include "row.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "utils/array.h"
#include "utils/memutils.h"

#include "compat.h"

Datum
outbox_int8_array(const int64 *values, int n)
{
	Datum	   *elems = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elems[i] = Int64GetDatum(values[i]);
	return PointerGetDatum(construct_array(elems, n, INT8OID, 8, FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

static void
need_slots(OutboxSlots *s, TupleDesc desc, int n)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	if (s->desc == NULL)
		s->desc = CreateTupleDescCopy(desc);
	if (s->n < n)
	{
		s->slots = s->slots ? repalloc_huge(s->slots, sizeof(TupleTableSlot *) * n) :
			palloc(sizeof(TupleTableSlot *) * n);
		while (s->n < n)
			s->slots[s->n++] = MakeTupleTableSlot(s->desc, &TTSOpsHeapTuple);
	}
	MemoryContextSwitchTo(old);
}

/*
 * There are no triggers, rules or foreign rows in the way; the tables are the
 * extension's.
 */
void
outbox_append_rows(Oid table, OutboxSlots *s, int nrows, Datum *values, bool *nulls)
{
	Relation	rel = table_open(table, NoLock);
	TupleDesc	desc = RelationGetDescr(rel);
	int			natts = desc->natts;
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *rri = makeNode(ResultRelInfo);

	InitResultRelInfo(rri, rel, 1, NULL, 0);
	ExecOpenIndices(rri, false);
	need_slots(s, desc, nrows);
	for (int i = 0; i < nrows; i++)
	{
		/* The slot owns the tuple, so that nothing copies it once more. */
		ExecStoreHeapTuple(heap_form_tuple(desc, values + (size_t) i * natts,
										   nulls + (size_t) i * natts),
						   s->slots[i], true);
		s->slots[i]->tts_tableOid = table;
	}
	table_multi_insert(rel, s->slots, nrows, GetCurrentCommandId(true), 0, NULL);
	for (int i = 0; i < nrows; i++)
	{
		outbox_insert_index_tuples(rri, s->slots[i], estate);
		ResetPerTupleExprContext(estate);
		ExecClearTuple(s->slots[i]);
	}
	ExecCloseIndices(rri);
	FreeExecutorState(estate);
	table_close(rel, NoLock);
}
