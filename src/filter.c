/*
 * filter.c
 *	  Owns the predicates over payloads that decide, after its topic, whether an
 *	  endpoint wants an event.
 */
#include "outbox.h"

#include "access/xact.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "filter.h"
#include "version.h"

/* True, false or, when it is neither, NULL in *isnull. */
static bool
evaluate(JsonPath *filter, Jsonb *payload, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, 4);
	Datum		result;
	Datum		vars = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));

	InitFunctionCallInfoData(*fcinfo, NULL, 4, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = JsonbPGetDatum(payload);
	fcinfo->args[1].value = PointerGetDatum(filter);
	fcinfo->args[2].value = vars;
	fcinfo->args[3].value = BoolGetDatum(true); /* silent */
	for (int i = 0; i < 4; i++)
		fcinfo->args[i].isnull = false;
	result = jsonb_path_match(fcinfo);
	*isnull = fcinfo->isnull;
	return !*isnull && DatumGetBool(result);
}

/*
 * Even a silent evaluation can throw: a comparison of times that needs a time
 * zone does.  One event must not end the worker, nor a query over all events.
 */
OutboxFilterResult
outbox_filter(JsonPath *filter, Jsonb *payload)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext cxt;
	volatile OutboxFilterResult result = OUTBOX_FILTER_ERROR;

	if (payload == NULL)
		return OUTBOX_FILTER_NO;

	cxt = AllocSetContextCreate(caller, "outbox filter", ALLOCSET_SMALL_SIZES);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(cxt);
	PG_TRY();
	{
		bool		isnull;
		bool		match = evaluate(filter, payload, &isnull);

		result = isnull ? OUTBOX_FILTER_ERROR :
			match ? OUTBOX_FILTER_YES : OUTBOX_FILTER_NO;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(cxt);
		edata = CopyErrorData();

		/*
		 * A cancel or a shortage is no property of the event; everything else,
		 * such as a payload that is nested too deep, is.
		 */
		if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION ||
			ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		result = OUTBOX_FILTER_ERROR;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	MemoryContextDelete(cxt);
	return result;
}

static bool
is_predicate(JsonPathItemType type)
{
	switch (type)
	{
		case jpiAnd:
		case jpiOr:
		case jpiNot:
		case jpiIsUnknown:
		case jpiEqual:
		case jpiNotEqual:
		case jpiLess:
		case jpiGreater:
		case jpiLessOrEqual:
		case jpiGreaterOrEqual:
		case jpiExists:
		case jpiStartsWith:
		case jpiLikeRegex:
			return true;
		default:
			return false;
	}
}

/*
 * What a filter, as jsonpath_out prints it, must not contain.  There are no
 * variables to give it.  And each ".**" multiplies what is looked at by the
 * size of the payload: with a second one, a few hundred bytes take all memory.
 */
static const char *
find_problem(const char *text)
{
	int			descents = 0;
	bool		quoted = false;

	for (const char *p = text; *p; p++)
	{
		if (quoted && *p == '\\' && p[1] != '\0')
			p++;
		else if (*p == '"')
		{
			if (!quoted && p > text && p[-1] == '$')
				return "it names a variable";
			quoted = !quoted;
		}
		else if (!quoted && p[0] == '*' && p[1] == '*')
		{
			if (++descents > 1)
				return "it has more than one \".**\"";
			p++;
		}
	}
	return NULL;
}

/*
 * check_filter(jsonpath): refuses what is true of nothing, because it yields
 * items instead of a truth value, and what cannot be evaluated.
 */
OUTBOX_FUNCTION(outbox_check_filter_1_0, 1)
{
	JsonPath   *path = PG_GETARG_JSONPATH_P(0);
	JsonPathItem item;
	const char *problem;
	char	   *text = DatumGetCString(DirectFunctionCall1(jsonpath_out,
														   PG_GETARG_DATUM(0)));

	jspInit(&item, path);
	if (!is_predicate(item.type))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("filter \"%s\" is not a predicate", text),
				 errhint("A filter is true or false, like '$.total > 100'. Perhaps you mean 'exists(%s)'.",
						 text)));
	problem = find_problem(text);
	if (problem)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid filter \"%s\": %s", text, problem),
				 errhint("A filter compares parts of the payload, like '$.total > 100'.")));
	PG_RETURN_VOID();
}

/* filter_matches(payload jsonb, filter jsonpath): NULL where it is an error. */
OUTBOX_FUNCTION(outbox_filter_matches_1_0, 2)
{
	OutboxFilterResult result;

	if (PG_ARGISNULL(1))
		PG_RETURN_BOOL(true);
	result = outbox_filter(PG_GETARG_JSONPATH_P(1),
						   PG_ARGISNULL(0) ? NULL : PG_GETARG_JSONB_P(0));
	if (result == OUTBOX_FILTER_ERROR)
		PG_RETURN_NULL();
	PG_RETURN_BOOL(result == OUTBOX_FILTER_YES);
}
