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

PG_FUNCTION_INFO_V1(outbox_check_filter);
PG_FUNCTION_INFO_V1(outbox_filter_matches);

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

		/* A cancel or a shortage is no property of the event. */
		if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) != ERRCODE_DATA_EXCEPTION &&
			ERRCODE_TO_CATEGORY(edata->sqlerrcode) != ERRCODE_FEATURE_NOT_SUPPORTED)
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
 * check_filter(jsonpath): refuses what is true of nothing, because it yields
 * items instead of a truth value.
 */
Datum
outbox_check_filter(PG_FUNCTION_ARGS)
{
	JsonPath   *path = PG_GETARG_JSONPATH_P(0);
	JsonPathItem item;

	jspInit(&item, path);
	if (!is_predicate(item.type))
	{
		char	   *text = DatumGetCString(DirectFunctionCall1(jsonpath_out,
															   PG_GETARG_DATUM(0)));

		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("filter \"%s\" is not a predicate", text),
				 errhint("A filter is true or false, like '$.total > 100'. Perhaps you mean 'exists(%s)'.",
						 text)));
	}
	PG_RETURN_VOID();
}

/* filter_matches(payload jsonb, filter jsonpath): NULL where it is an error. */
Datum
outbox_filter_matches(PG_FUNCTION_ARGS)
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
