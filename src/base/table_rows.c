/*
 * table_rows.c
 *	  Owns how the columns of a row are read, how rows are appended to the extension's
 *	  tables, and how arrays are made and read.
 */
#include "base/table_rows.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/partition.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "base/version.h"

int
outbox_read_into(OutboxColumns row, const OutboxInto *into)
{
	int c = row.first;

	for (; OidIsValid(into->type); c++, into++)
	{
		Form_pg_attribute column = TupleDescAttr(row.desc, c);

		if (column->atttypid != into->type)
			elog(ERROR, "column \"%s\" has type %u instead of %u",
				 NameStr(column->attname), column->atttypid, into->type);
		if (row.nulls[c])
			memset(into->place, 0,
				   column->attlen > 0 ? (size_t) column->attlen : sizeof(void *));
		else if (column->attbyval)
			store_att_byval(into->place, row.values[c], column->attlen);
		else if (column->attlen > 0)
			memcpy(into->place, DatumGetPointer(row.values[c]), column->attlen);
		else if (into->type == TEXTOID)
			*(char **) into->place = TextDatumGetCString(row.values[c]);
		else
			*(void **) into->place = PG_DETOAST_DATUM(row.values[c]);
	}
	return c - row.first;
}

Datum
outbox_array(const Datum *elems, int n, Oid type)
{
	int	 len = type == INT4OID ? 4 :
		 type == INT8OID	   ? 8 :
		 type == UUIDOID	   ? UUID_LEN :
		 type == TIDOID		   ? (int) sizeof(ItemPointerData) :
								 -1;
	char align = type == INT8OID ? TYPALIGN_DOUBLE :
		type == UUIDOID			 ? TYPALIGN_CHAR :
		type == TIDOID			 ? TYPALIGN_SHORT :
								   TYPALIGN_INT;

	return PointerGetDatum(
		construct_array(unconstify(Datum *, elems), n, type, len,
						type == INT4OID || (type == INT8OID && FLOAT8PASSBYVAL), align));
}

Datum
outbox_int8_array(const int64 *values, int n)
{
	Datum *elems = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elems[i] = Int64GetDatum(values[i]);
	return outbox_array(elems, n, INT8OID);
}

char **
outbox_text_array(ArrayType *array, int *n)
{
	Datum *elems;
	bool  *nulls;
	int	   nelems;
	char **strings;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, &nelems);
	strings = palloc(sizeof(char *) * Max(nelems, 1));
	*n = 0;
	for (int i = 0; i < nelems; i++)
		if (!nulls[i])
			strings[(*n)++] = TextDatumGetCString(elems[i]);
	return strings;
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

/* An index "WHERE column IS NOT NULL", and the number of its column. */
typedef struct KnownIndex
{
	Oid		   oid;
	AttrNumber column;
} KnownIndex;

#define KNOWN_INDEXES 16 /* the log has three, and so has a copy that is being made */

static KnownIndex known[KNOWN_INDEXES];
static int		  nknown;

/* A predicate never changes, but a number may be another index's one day. */
static void
forget_index(Datum arg pg_attribute_unused(), Oid oid)
{
	for (int i = 0; i < nknown; i++)
		if (oid == InvalidOid || known[i].oid == oid)
			known[i--] = known[--nknown];
}

static AttrNumber
column_that_must_not_be_null(const List *predicate)
{
	NullTest *test = list_length(predicate) == 1 ? linitial(predicate) : NULL;

	if (test == NULL || !IsA(test, NullTest) || test->nulltesttype != IS_NOT_NULL ||
		test->argisrow || !IsA(test->arg, Var))
		return 0;
	return Max(((Var *) test->arg)->varattno, 0);
}

/* Returns 0 for an index that is not known to be one of these. */
static AttrNumber
known_column(Oid oid)
{
	for (int i = 0; i < nknown; i++)
		if (known[i].oid == oid)
			return known[i].column;
	return 0;
}

/*
 * Opens the indexes that the row belongs to.  To open one costs more than to insert a
 * small row into it, so an index "WHERE column IS NOT NULL" stays closed where the column
 * is NULL.  Which indexes these are is remembered.
 */
static void
open_indexes(ResultRelInfo *info, TupleTableSlot *slot)
{
	static bool registered;
	List	   *oids = RelationGetIndexList(info->ri_RelationDesc);
	ListCell   *cell;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_index, (Datum) 0);
		registered = true;
	}
	info->ri_IndexRelationDescs = palloc(sizeof(Relation) * Max(list_length(oids), 1));
	info->ri_IndexRelationInfo = palloc(sizeof(IndexInfo *) * Max(list_length(oids), 1));
	foreach (cell, oids)
	{
		AttrNumber column = known_column(lfirst_oid(cell));
		Relation   index;
		IndexInfo *how;

		if (column > 0 && slot->tts_isnull[column - 1])
			continue;
		index = index_open(lfirst_oid(cell), RowExclusiveLock);
		how = BuildIndexInfo(index);
		if (column == 0)
		{
			column = column_that_must_not_be_null(how->ii_Predicate);
			if (column > 0 && nknown < KNOWN_INDEXES)
				known[nknown++] = (KnownIndex){lfirst_oid(cell), column};
		}
		if (column > 0)
		{
			/* Decided here: the executor would prepare the expression for each row. */
			how->ii_Predicate = NIL;
			if (slot->tts_isnull[column - 1])
				how->ii_ReadyForInserts = false;
		}
		info->ri_IndexRelationDescs[info->ri_NumIndices] = index;
		info->ri_IndexRelationInfo[info->ri_NumIndices++] = how;
	}
	list_free(oids);
}

/*
 * Makes the executor's state for inserts into one table.  The table's triggers find it
 * there.  Opens the indexes that the row of 'slot' needs; NULL: all.
 */
static EState *
begin_insert(ResultRelInfo *info, Relation rel, TupleTableSlot *slot)
{
	EState *estate = CreateExecutorState();

	InitResultRelInfo(info, rel, 0, NULL, 0);
	if (slot)
		open_indexes(info, slot);
	else
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

void
outbox_insert_row(Relation rel, TupleTableSlot *slot)
{
	ResultRelInfo *info = makeNode(ResultRelInfo);
	bool		   with_triggers = has_triggers_of_others(rel);
	EState		  *estate = begin_insert(info, rel, with_triggers ? NULL : slot);

	if (with_triggers)
	{
		AfterTriggerBeginQuery();
		insert_with_triggers(info, estate, slot);
		AfterTriggerEndQuery(estate);
	}
	else
	{
		table_tuple_insert(rel, slot, GetCurrentCommandId(true), 0, NULL);
		outbox_insert_index_tuples(info, slot, estate);
	}
	end_insert(info, estate);
}

void
outbox_put_column(OutboxRows *rows, Datum value, bool null)
{
	if (rows->max == 0)
	{
		rows->max = 32;
		rows->values = palloc(sizeof(Datum) * rows->max);
		rows->nulls = palloc(sizeof(bool) * rows->max);
	}
	else if (rows->n == rows->max)
	{
		rows->max *= 2;
		rows->values = repalloc_huge(rows->values, sizeof(Datum) * rows->max);
		rows->nulls = repalloc_huge(rows->nulls, sizeof(bool) * rows->max);
	}
	rows->values[rows->n] = value;
	rows->nulls[rows->n++] = null;
}

Datum
outbox_return_row(FunctionCallInfo fcinfo, const OutboxRows *row)
{
	TupleDesc desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	outbox_expect_columns(fcinfo, desc, (int) row->n);
	return HeapTupleGetDatum(
		heap_form_tuple(BlessTupleDesc(desc), row->values, row->nulls));
}

void
outbox_add_row(FunctionCallInfo fcinfo, OutboxRows *row)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	outbox_expect_columns(fcinfo, rsinfo->setDesc, (int) row->n);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row->values, row->nulls);
	row->n = 0;
}

/* A column that was added by hand, and dropped again, stays in the table's descriptor. */
void
outbox_expect_no_more_columns(Oid table, int n)
{
	char *column;
	char *owner; /* the table whose columns they are: of a partition, its parent */

	for (int i = n + 1; (column = get_attname(table, i, true)) != NULL; i++)
	{
		if (get_attnum(table, column) == InvalidAttrNumber)
			continue;
		owner = get_rel_name(
			get_rel_relispartition(table) ? get_partition_parent(table, true) : table);
		if (owner == NULL) /* it is being dropped, and whoever uses it finds that */
			return;
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg(
				 "table \"%s.%s\" has a column \"%s\" that the library of outbox %s does not know",
				 OUTBOX_SCHEMA, owner, column, OUTBOX_VERSION),
			 errhint(
				 "If it was added by hand, drop it: ALTER TABLE %s.%s DROP COLUMN %s. If ALTER EXTENSION outbox UPDATE added it, restart the server with the library of the installed version.",
				 OUTBOX_SCHEMA, quote_identifier(owner), quote_identifier(column))));
	}
}

/* Row 'i'.  Columns that were dropped are NULL. */
static HeapTuple
form_row(TupleDesc desc, int columns, const OutboxRows *rows, int i)
{
	size_t first = (size_t) i * columns;
	Datum *values;
	bool  *nulls;

	if (desc->natts == columns)
		return heap_form_tuple(desc, rows->values + first, rows->nulls + first);
	values = palloc0(sizeof(Datum) * desc->natts);
	nulls = palloc(sizeof(bool) * desc->natts);
	memset(nulls, true, desc->natts);
	memcpy(values, rows->values + first, sizeof(Datum) * columns);
	memcpy(nulls, rows->nulls + first, sizeof(bool) * columns);
	return heap_form_tuple(desc, values, nulls);
}

static int
count_rows(Relation rel, int columns, const OutboxRows *rows)
{
	if (RelationGetNumberOfAttributes(rel) > columns)
		outbox_expect_no_more_columns(RelationGetRelid(rel), columns);
	if (rows->n % columns != 0 || RelationGetNumberOfAttributes(rel) < columns)
		elog(ERROR, "rows of \"%s\" do not have %d columns", RelationGetRelationName(rel),
			 columns);
	return (int) (rows->n / columns);
}

Datum
outbox_rows_array(Oid table, int columns, const OutboxRows *rows, Oid *type)
{
	Relation  rel = table_open(table, NoLock);
	TupleDesc desc = RelationGetDescr(rel);
	Oid		  row_type = rel->rd_rel->reltype;
	int		  n = count_rows(rel, columns, rows);
	Datum	 *elems = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elems[i] = HeapTupleGetDatum(form_row(desc, columns, rows, i));
	table_close(rel, NoLock);
	*type = get_array_type(row_type);
	return PointerGetDatum(
		construct_array(elems, n, row_type, -1, false, TYPALIGN_DOUBLE));
}

/* Rules and foreign tables are not handled: the tables are the extension's. */
int
outbox_append_rows(Oid table, int columns, const OutboxRows *rows)
{
	Relation		 rel = table_open(table, NoLock);
	TupleDesc		 desc = CreateTupleDescCopy(RelationGetDescr(rel));
	int				 nrows = count_rows(rel, columns, rows);
	TupleTableSlot **slots = palloc(sizeof(TupleTableSlot *) * Max(nrows, 1));
	ResultRelInfo	*info = makeNode(ResultRelInfo);
	EState			*estate = begin_insert(info, rel, NULL);
	bool			 with_triggers = has_triggers_of_others(rel);

	/*
	 * Each slot owns its tuple, which saves another copy.  Slots and tuples are in the
	 * transaction's memory.  A slot that outlived an error would free a tuple that is
	 * gone.
	 */
	for (int i = 0; i < nrows; i++)
	{
		slots[i] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
		ExecStoreHeapTuple(form_row(desc, columns, rows, i), slots[i], true);
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
	return nrows;
}
