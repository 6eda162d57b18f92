/*
 * change_trigger.c
 *	  outbox.emit_change(): the trigger that emits the change of a row.
 *
 * It writes the log directly, as emit() does, so it needs no privilege of its own.  A
 * row may be turned into JSON by a cast that a type's owner wrote.  That cast runs as
 * the role that changes the row, never as the owner of outbox.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/version.h"
#include "emit/as_text.h"
#include "emit/emit.h"
#include "log/step.h"

/* The arguments of a trigger, as columns of its table.  Kept for one statement. */
typedef struct Change
{
	text		*topic;
	text		*table;
	int			 key; /* attribute number */
	OutboxAsText key_text;
	int			 tenant; /* attribute number (0: the events have no tenant) */
	OutboxAsText tenant_text;
	int			 n;		  /* number of columns in the payload */
	int			*columns; /* their attribute numbers */
	TupleDesc	 row;	  /* of these columns */
	FmgrInfo	 to_jsonb;
	bool		 has_formats; /* a setting changes the text of some column */
	bool		 omits;		  /* a row that no event can carry is left out of its event */
	bool		 told;		  /* there was a warning that one is left out */
} Change;

static void
add_context(void *arg)
{
	TriggerData *trigger = arg;

	errcontext("trigger \"%s\" of table \"%s\", which calls outbox.emit_change()",
			   trigger->tg_trigger->tgname,
			   RelationGetRelationName(trigger->tg_relation));
}

static bool
can_be_carried(const FormData_pg_attribute *att)
{
	return !att->attisdropped && !outbox_column_is_virtual(att);
}

static int
find_column(Relation rel, const char *name)
{
	TupleDesc desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (can_be_carried(att) && namestrcmp(&att->attname, name) == 0)
			return i + 1;
	}
	ereport(
		ERROR,
		(errcode(ERRCODE_UNDEFINED_COLUMN),
		 errmsg("table \"%s\" has no column \"%s\" that outbox.emit_change() could use",
				RelationGetRelationName(rel), name),
		 errhint(
			 "Write a name as it is stored, in the same case. Put a name with commas or blanks in double quotes. System columns and virtual columns cannot be used."),
		 errtable(rel)));
	return 0;
}

/* Chooses the columns of the third argument, or with NULL or "*" all columns. */
static void
choose_columns(Change *c, Relation rel, const char *names)
{
	TupleDesc desc = RelationGetDescr(rel);
	List	 *list = NIL;
	ListCell *lc;

	c->columns = palloc(sizeof(int) * Max(desc->natts, 1));
	if (names == NULL || strcmp(names, "*") == 0)
	{
		for (int i = 0; i < desc->natts; i++)
			if (can_be_carried(TupleDescAttr(desc, i)))
				c->columns[c->n++] = i + 1;
		return;
	}
	if (!SplitGUCList(pstrdup(names), ',', &list) || list == NIL)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid list of columns for table \"%s\": \"%s\"",
					RelationGetRelationName(rel), names),
			 errhint(
				 "Pass names with commas between them, like 'status,total', or '*' to carry all columns."),
			 errtable(rel)));
	foreach (lc, list)
	{
		int attnum = find_column(rel, lfirst(lc));

		for (int i = 0; i < c->n; i++)
			if (c->columns[i] == attnum)
				attnum = 0;
		if (attnum != 0)
			c->columns[c->n++] = attnum;
	}
}

/*
 * The table on which the trigger was created.  The trigger of a partition is a copy of
 * its parent's, and the creator named the parent.
 */
static Oid
table_of(Relation rel, Oid trigger)
{
	Oid		 table = RelationGetRelid(rel);
	Relation catalog;

	if (!rel->rd_rel->relispartition)
		return table;
	catalog = table_open(TriggerRelationId, AccessShareLock);
	while (OidIsValid(trigger))
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&key, Anum_pg_trigger_oid, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(trigger));
		scan = systable_beginscan(catalog, TriggerOidIndexId, true, NULL, 1, &key);
		tuple = systable_getnext(scan);
		trigger = InvalidOid;
		if (HeapTupleIsValid(tuple))
		{
			table = ((Form_pg_trigger) GETSTRUCT(tuple))->tgrelid;
			trigger = ((Form_pg_trigger) GETSTRUCT(tuple))->tgparentid;
		}
		systable_endscan(scan);
	}
	table_close(catalog, AccessShareLock);
	return table;
}

static void
use_column(Relation rel, int column, OutboxAsText *as)
{
	outbox_as_text_init(as, TupleDescAttr(RelationGetDescr(rel), column - 1)->atttypid,
						CurrentMemoryContext);
}

static Change *
describe(TriggerData *trigger)
{
	Relation rel = trigger->tg_relation;
	char   **args = trigger->tg_trigger->tgargs;
	int		 nargs = trigger->tg_trigger->tgnargs;
	Change	*c = palloc0(sizeof(Change));
	Oid		 table;

	if (nargs < 2 || nargs > 5)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg(
				 "outbox.emit_change() takes a topic, a key column, and optionally a list of columns, a tenant column and fail or omit, not %d arguments",
				 nargs),
			 errhint(
				 "EXECUTE FUNCTION outbox.emit_change('order.changed', 'id', 'status,total')"),
			 errtable(rel)));

	if (nargs == 5 && !(c->omits = strcmp(args[4], "omit") == 0) &&
		strcmp(args[4], "fail") != 0)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid last argument of outbox.emit_change(): \"%s\"", args[4]),
			 errhint(
				 "Use 'fail': a row that no event can carry is an error; or 'omit': its event does not have the row."),
			 errtable(rel)));

	c->topic = cstring_to_text(args[0]);
	c->key = find_column(rel, args[1]);
	choose_columns(c, rel, nargs >= 3 ? args[2] : NULL);
	table = table_of(rel, trigger->tg_trigger->tgoid);
	c->table = cstring_to_text(
		quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
								   get_rel_name(table)));
	use_column(rel, c->key, &c->key_text);
	if (nargs >= 4 && args[3][0] != '\0')
	{
		c->tenant = find_column(rel, args[3]);
		use_column(rel, c->tenant, &c->tenant_text);
	}
	c->row = CreateTemplateTupleDesc(c->n);
	for (int i = 0; i < c->n; i++)
	{
		TupleDescCopyEntry(c->row, i + 1, RelationGetDescr(rel), c->columns[i]);
		c->has_formats |= outbox_type_has_formats(TupleDescAttr(c->row, i)->atttypid);
	}
	c->row = outbox_bless_row_type(c->row);

	/* to_jsonb() takes the type of its value from the expression that calls it. */
	fmgr_info(F_TO_JSONB, &c->to_jsonb);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_TO_JSONB, JSONBOID,
											 list_make1(makeNullConst(RECORDOID, -1,
																	  InvalidOid)),
											 InvalidOid, InvalidOid,
											 COERCE_EXPLICIT_CALL),
					   &c->to_jsonb);
	return c;
}

/* True if the column has the same bytes in both, so 1.0 is not 1.00. */
static bool
is_same(int column, TupleDesc desc, HeapTuple old, HeapTuple new)
{
	Form_pg_attribute att = TupleDescAttr(desc, column - 1);
	bool			  old_null;
	bool			  new_null;
	Datum			  a = heap_getattr(old, column, desc, &old_null);
	Datum			  b = heap_getattr(new, column, desc, &new_null);

	return old_null == new_null &&
		(old_null || datum_image_eq(a, b, att->attbyval, att->attlen));
}

/* True if one of the columns in the payload differs. */
static bool
differs(const Change *c, TupleDesc desc, HeapTuple old, HeapTuple new)
{
	for (int i = 0; i < c->n; i++)
		if (!is_same(c->columns[i], desc, old, new))
			return true;
	return false;
}

static Datum
carried(const Change *c, TupleDesc desc, HeapTuple tuple)
{
	Datum *values = palloc(sizeof(Datum) * Max(c->n, 1));
	bool  *nulls = palloc(sizeof(bool) * Max(c->n, 1));

	for (int i = 0; i < c->n; i++)
		values[i] = heap_getattr(tuple, c->columns[i], desc, &nulls[i]);
	return heap_copy_tuple_as_datum(heap_form_tuple(c->row, values, nulls), c->row);
}

/*
 * Makes {"op": …, "table": …, "new": {…}, "old": {…}}, without "new" or "old" if there
 * is none.  With 'omitted', both are left out, and "omitted" says why.
 */
static Jsonb *
make_payload(Change *c, TupleDesc desc, HeapTuple new, HeapTuple old, const char *omitted)
{
	bool has_new = new != NULL &&omitted == NULL;
	bool						 has_old = old != NULL && omitted == NULL;
	TupleDesc whole = CreateTemplateTupleDesc(has_new && has_old ? 4 : 3);
	Datum	  values[4] = {CStringGetTextDatum(!old		? "insert" :
												   !new ? "delete" :
														  "update"),
						   PointerGetDatum(c->table)};
	bool	  nulls[4] = {false, false, false, false};
	int		  n = 2;

	TupleDescInitEntry(whole, 1, "op", TEXTOID, -1, 0);
	TupleDescInitEntry(whole, 2, "table", TEXTOID, -1, 0);
	if (omitted)
	{
		values[n++] = CStringGetTextDatum(omitted);
		TupleDescInitEntry(whole, n, "omitted", TEXTOID, -1, 0);
	}
	if (has_new)
	{
		values[n++] = carried(c, desc, new);
		TupleDescInitEntry(whole, n, "new", RECORDOID, -1, 0);
	}
	if (has_old)
	{
		values[n++] = carried(c, desc, old);
		TupleDescInitEntry(whole, n, "old", RECORDOID, -1, 0);
	}
	whole = outbox_bless_row_type(whole);
	return DatumGetJsonbP(
		FunctionCall1(&c->to_jsonb,
					  heap_copy_tuple_as_datum(heap_form_tuple(whole, values, nulls),
											   whole)));
}

/* A payload to be made, and the result. */
typedef struct Attempt
{
	Change	 *change;
	TupleDesc desc;
	HeapTuple new;
	HeapTuple old;
	Jsonb	 *payload;
} Attempt;

static void
try_payload(void *arg)
{
	Attempt *a = arg;

	a->payload = make_payload(a->change, a->desc, a->new, a->old, NULL);
	outbox_check_payload(a->payload, true);
}

/*
 * Makes the payload, or one without the row if no event can carry it: it is too large or
 * nested too deeply, or jsonb does not have one of its values.  Another error is one of
 * the statement, and comes again.
 */
static Jsonb *
payload_or_reason(Change *c, TupleDesc desc, HeapTuple new, HeapTuple old)
{
	Attempt			a = {.change = c, .desc = desc, .new = new, .old = old};
	OutboxStepError why;

	if (outbox_step_try_part(try_payload, &a, &why))
		return a.payload;
	if (ERRCODE_TO_CATEGORY(why.sqlerrcode) != ERRCODE_DATA_EXCEPTION &&
		ERRCODE_TO_CATEGORY(why.sqlerrcode) != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
		return make_payload(c, desc, new, old, NULL);
	if (!c->told)
		ereport(
			WARNING,
			(errcode(why.sqlerrcode),
			 errmsg("an event has only the key of its row: %s", why.message),
			 errhint(
				 "Receivers have to read the row, or the trigger has to carry fewer columns.")));
	c->told = true;
	return make_payload(c, desc, new, old, why.message);
}

/* NULL if the column is NULL or empty: the event then has no key, or no tenant. */
static text *
text_of(int column, OutboxAsText *as, TupleDesc desc, HeapTuple tuple)
{
	bool  isnull;
	Datum value = heap_getattr(tuple, column, desc, &isnull);
	text *t = isnull ? NULL : outbox_as_text(as, value);

	return t == NULL || VARSIZE_ANY_EXHDR(t) == 0 ? NULL : t;
}

/* True if the row has gone from one tenant, or from none, to another. */
static bool
has_moved(Change *c, TupleDesc desc, HeapTuple old, HeapTuple new)
{
	return c->tenant && !is_same(c->tenant, desc, old, new) &&
		(text_of(c->tenant, &c->tenant_text, desc, old) != NULL ||
		 text_of(c->tenant, &c->tenant_text, desc, new) != NULL);
}

/* Emits one event: of an insert if there is no old row, of a delete if no new one. */
static void
tell(Change *c, TupleDesc desc, HeapTuple new, HeapTuple old)
{
	OutboxNewEvent e = {0};
	int			   level = c->has_formats ? outbox_formats_fix() : 0;

	e.topic = c->topic;
	e.key = text_of(c->key, &c->key_text, desc, new ? new : old);
	if (c->tenant)
		e.tenant = text_of(c->tenant, &c->tenant_text, desc, new ? new : old);
	e.payload = c->omits ? payload_or_reason(c, desc, new, old) :
						   make_payload(c, desc, new, old, NULL);
	if (c->has_formats)
		AtEOXact_GUC(true, level);
	(void) outbox_emit(&e);
}

static void
emit_change(FunctionCallInfo fcinfo, TriggerData *trigger)
{
	TriggerEvent event = trigger->tg_event;
	TupleDesc	 desc = RelationGetDescr(trigger->tg_relation);
	HeapTuple	 old = TRIGGER_FIRED_BY_INSERT(event) ? NULL : trigger->tg_trigtuple;
	HeapTuple new = TRIGGER_FIRED_BY_DELETE(event) ? NULL :
		TRIGGER_FIRED_BY_UPDATE(event)			   ? trigger->tg_newtuple :
													 trigger->tg_trigtuple;
	Change *c = fcinfo->flinfo->fn_extra;

	/* Between the triggers of one statement PostgreSQL does not look for interrupts. */
	CHECK_FOR_INTERRUPTS();
	outbox_refuse_read_only("outbox.emit_change()");
	if (c == NULL)
	{
		MemoryContext caller = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		int			  level = outbox_formats_fix(); /* for the name of the table */

		c = describe(trigger);
		AtEOXact_GUC(true, level);
		MemoryContextSwitchTo(caller);
		fcinfo->flinfo->fn_extra = c;
	}

	/* A tenant learns that a row of its has gone, and no other tenant sees that row. */
	if (TRIGGER_FIRED_BY_UPDATE(event) && has_moved(c, desc, old, new))
	{
		tell(c, desc, NULL, old);
		tell(c, desc, new, NULL);
	}
	else if (old == NULL || new == NULL || differs(c, desc, old, new))
		tell(c, desc, new, old);
}

OUTBOX_FUNCTION(outbox_emit_change_1_0, 0)
{
	TriggerData			*trigger = (TriggerData *) fcinfo->context;
	ErrorContextCallback callback;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(
			ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg(
				 "outbox.emit_change() must be called by an AFTER ... FOR EACH ROW trigger"),
			 errhint(
				 "CREATE TRIGGER ... AFTER INSERT OR UPDATE OR DELETE ON ... FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('order.changed', 'id');")));

	callback.callback = add_context;
	callback.arg = trigger;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	emit_change(fcinfo, trigger);
	error_context_stack = callback.previous;
	return PointerGetDatum(NULL);
}
