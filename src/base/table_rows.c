/*
 * table_rows.c
 *	  Owns how rows are appended to the extension's tables, and how numbers become an
 *	  array.
 */
#include "base/table_rows.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "utils/array.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/compat.h"

Datum
outbox_int8_array(const int64 *values, int n)
{
	Datum *elems = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elems[i] = Int64GetDatum(values[i]);
	return PointerGetDatum(
		construct_array(elems, n, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

int
outbox_compare_int8(const void *a, const void *b)
{
	int64 x = *(const int64 *) a;
	int64 y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * True if the table has triggers for an inserted row that are not the extension's.
 * Tools that copy a table while it is written, such as pg_repack, learn of new rows by
 * such a trigger.  A row inserted without calling it would be lost.
 */
static bool
has_triggers_of_others(Relation rel)
{
	TriggerDesc *desc = rel->trigdesc;

	for (int i = 0; desc && i < desc->numtriggers; i++)
	{
		Trigger *trigger = &desc->triggers[i];

		/*
		 * The extension made these two with the table.  Trigger names are unique in a
		 * table.
		 */
		if (TRIGGER_FOR_ROW(trigger->tgtype) && TRIGGER_FOR_INSERT(trigger->tgtype) &&
			strcmp(trigger->tgname, "fill_id") != 0 &&
			strcmp(trigger->tgname, "skip_replicated_row") != 0)
			return true;
	}
	return false;
}

/*
 * Inserts a row as the executor does, with triggers and constraints.  The caller fires
 * the AFTER triggers.
 */
static void
insert_with_triggers(ResultRelInfo *info, EState *estate, TupleTableSlot *slot)
{
	ExecSimpleRelationInsert(info, estate, slot);
	if (!ItemPointerIsValid(&slot->tts_tid))
		ereport(
			ERROR,
			(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
			 errmsg("a trigger kept a row out of \"%s.%s\"", OUTBOX_SCHEMA,
					RelationGetRelationName(info->ri_RelationDesc)),
			 errhint(
				 "Let the BEFORE INSERT trigger of this table return the row, or drop the trigger."),
			 errtable(info->ri_RelationDesc)));
}

/*
 * Makes the executor's state for inserts into one table.  The table's triggers find it
 * there.
 */
static EState *
begin_insert(ResultRelInfo *info, Relation rel)
{
	EState *estate = CreateExecutorState();

	InitResultRelInfo(info, rel, 0, NULL, 0);
	ExecOpenIndices(info, false);
	estate->es_opened_result_relations = list_make1(info);
	return estate;
}

static void
end_insert(ResultRelInfo *info, EState *estate)
{
	ExecCloseIndices(info);
	ExecResetTupleTable(estate->es_tupleTable, false);
	FreeExecutorState(estate);
}

/*
 * Decides for indexes "WHERE column IS NOT NULL" here whether the row belongs to them.
 * The executor would prepare and evaluate the expression for each row.
 */
static void
decide_partial_indexes(ResultRelInfo *info, TupleTableSlot *slot)
{
	for (int i = 0; i < info->ri_NumIndices; i++)
	{
		IndexInfo *index = info->ri_IndexRelationInfo[i];
		NullTest  *test = list_length(index->ii_Predicate) == 1 ?
			 linitial(index->ii_Predicate) :
			 NULL;

		if (test == NULL || !IsA(test, NullTest) || test->nulltesttype != IS_NOT_NULL ||
			test->argisrow || !IsA(test->arg, Var) || ((Var *) test->arg)->varattno <= 0)
			continue;
		index->ii_Predicate = NIL;
		if (slot->tts_isnull[((Var *) test->arg)->varattno - 1])
			index->ii_ReadyForInserts = false; /* the executor leaves it alone */
	}
}

void
outbox_insert_row(Relation rel, TupleTableSlot *slot)
{
	ResultRelInfo *info = makeNode(ResultRelInfo);
	EState		  *estate = begin_insert(info, rel);

	if (has_triggers_of_others(rel))
	{
		AfterTriggerBeginQuery();
		insert_with_triggers(info, estate, slot);
		AfterTriggerEndQuery(estate);
	}
	else
	{
		decide_partial_indexes(info, slot);
		table_tuple_insert(rel, slot, GetCurrentCommandId(true), 0, NULL);
		outbox_insert_index_tuples(info, slot, estate);
	}
	end_insert(info, estate);
}

/* Rules and foreign tables are not handled: the tables are the extension's. */
void
outbox_append_rows(Oid table, int nrows, Datum *values, bool *nulls)
{
	Relation		 rel = table_open(table, NoLock);
	TupleDesc		 desc = CreateTupleDescCopy(RelationGetDescr(rel));
	int				 natts = desc->natts;
	TupleTableSlot **slots = palloc(sizeof(TupleTableSlot *) * Max(nrows, 1));
	ResultRelInfo	*info = makeNode(ResultRelInfo);
	EState			*estate = begin_insert(info, rel);
	bool			 with_triggers = has_triggers_of_others(rel);

	/*
	 * Each slot owns its tuple, which saves another copy.  Slots and tuples are in the
	 * transaction's memory.  A slot that outlived an error would free a tuple that is
	 * gone.
	 */
	for (int i = 0; i < nrows; i++)
	{
		slots[i] = MakeTupleTableSlot(desc, &TTSOpsHeapTuple);
		ExecStoreHeapTuple(heap_form_tuple(desc, values + (size_t) i * natts,
										   nulls + (size_t) i * natts),
						   slots[i], true);
		slots[i]->tts_tableOid = table;
	}
	if (with_triggers)
		AfterTriggerBeginQuery();
	else
		table_multi_insert(rel, slots, nrows, GetCurrentCommandId(true), 0, NULL);
	for (int i = 0; i < nrows; i++)
	{
		if (with_triggers)
			insert_with_triggers(info, estate, slots[i]);
		else
			outbox_insert_index_tuples(info, slots[i], estate);
		ResetPerTupleExprContext(estate);
		ExecDropSingleTupleTableSlot(slots[i]);
	}
	if (with_triggers)
		AfterTriggerEndQuery(estate);
	end_insert(info, estate);
	table_close(rel, NoLock);
}
