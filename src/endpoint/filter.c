/*
 * filter.c
 *	  Owns the predicates over payloads that decide, after its topic, whether an
 *	  endpoint wants an event.
 */
#include "base/outbox.h"

#include <signal.h>
#include <sys/time.h>

#include "access/xact.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/version.h"
#include "endpoint/filter.h"

/* Of the worker's CPU; an evaluation that is under way at two ticks ends. */
#define TICK_US (OUTBOX_FILTER_MAX_MS * 1000 / 2)

static volatile sig_atomic_t evaluation; /* 0: none is under way */
static volatile sig_atomic_t evaluation_at_tick;
static volatile sig_atomic_t out_of_time;

/*
 * The clock stands still while the process does: a machine that is busy, or was
 * asleep, makes no evaluation take too long.  What ends the evaluation is what a
 * cancel would do; one that is there already is left alone.
 */
static void
tick(SIGNAL_ARGS)
{
	(void) postgres_signal_arg;
	if (evaluation != 0 && evaluation == evaluation_at_tick && !QueryCancelPending)
	{
		out_of_time = true;
		QueryCancelPending = true;
		InterruptPending = true;
	}
	evaluation_at_tick = evaluation;
}

/*
 * The ticks go on from here, twenty in each second of CPU that the worker uses:
 * to set and stop a timer for each event would cost more than most filters do.
 */
void
outbox_filter_limit_time(void)
{
	struct itimerval ticks = {{0, TICK_US}, {0, TICK_US}};

	pqsignal(SIGPROF, tick);
	if (setitimer(ITIMER_PROF, &ticks, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not start the timer of filters: %m"),
				 errhint("The system must allow setitimer(ITIMER_PROF).")));
}

static void
begin_evaluation(void)
{
	static int last;

	last = last == PG_INT32_MAX ? 1 : last + 1;
	out_of_time = false;
	evaluation = last;
}

/* True: it ran out of time.  Nothing of that is left over for what comes later. */
static bool
end_evaluation(void)
{
	evaluation = 0;
	if (!out_of_time)
		return false;
	out_of_time = false;
	QueryCancelPending = false;
	return true;
}

/* True, false or, when it is neither, NULL in *isnull. */
static bool
evaluate(JsonPath *filter, Jsonb *payload, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, 4);
	Datum result;
	Datum vars = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));

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
	MemoryContext				caller = CurrentMemoryContext;
	ResourceOwner				owner = CurrentResourceOwner;
	MemoryContext				cxt;
	volatile OutboxFilterResult result = OUTBOX_FILTER_ERROR;

	if (payload == NULL)
		return OUTBOX_FILTER_NO;

	cxt = AllocSetContextCreate(caller, "outbox filter", ALLOCSET_SMALL_SIZES);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(cxt);
	PG_TRY();
	{
		bool isnull;
		bool match;

		begin_evaluation();
		match = evaluate(filter, payload, &isnull);
		(void) end_evaluation();
		result = isnull ? OUTBOX_FILTER_ERROR :
			match		? OUTBOX_FILTER_YES :
						  OUTBOX_FILTER_NO;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData *edata;
		bool	   too_long = end_evaluation();

		MemoryContextSwitchTo(cxt);
		edata = CopyErrorData();

		/*
		 * A cancel or a shortage is no property of the event; everything else,
		 * such as a payload that is nested too deep, is.
		 */
		if (!(too_long && edata->sqlerrcode == ERRCODE_QUERY_CANCELED) &&
			(ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION ||
			 ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_INSUFFICIENT_RESOURCES))
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		result = too_long ? OUTBOX_FILTER_TOO_LONG : OUTBOX_FILTER_ERROR;
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
 * An accepted filter takes time and memory in proportion to the payload, however
 * that is made: what is refused is what would look at one part of it anew for
 * each item of another.
 *
 * What an expression yields: more than one item?  An array?  In lax mode that is
 * unwrapped where an operand or an accessor finds it.  A number of the payload,
 * which has as many digits as somebody likes, or a text of any length?  The same,
 * each time it is asked?
 */
typedef struct Yield
{
	bool many;
	bool array;
	bool digits;
	bool fixed;
} Yield;

/* Where a walk through the parts of a filter is, and what it has found. */
typedef struct Walk
{
	bool		lax;
	bool		repeated;	  /* what is here is asked for each of several items */
	bool		same_current; /* of all of which "@" is the same */
	int			descents;
	const char *problem;
} Walk;

#define MANY_TIMES \
	"inside \"?()\" or \"[]\" it does more with what stays the same than to compare one item of it"

static Yield walk(JsonPathItem *item, Walk *w);

/* As an operand, or as what a method is applied to: unwrapped. */
static bool
unwraps_to_many(Yield y, const Walk *w)
{
	return y.many || (w->lax && y.array);
}

static void
forbid(Walk *w, bool found, const char *problem)
{
	if (found && w->problem == NULL)
		w->problem = problem;
}

static void
walk_operands(JsonPathItem *item, Walk *w, Yield *left, Yield *right)
{
	JsonPathItem arg;

	jspGetLeftArg(item, &arg);
	*left = walk(&arg, w);
	jspGetRightArg(item, &arg);
	*right = walk(&arg, w);
}

static bool
is_ordering(JsonPathItemType type)
{
	return type == jpiLess || type == jpiGreater || type == jpiLessOrEqual ||
		type == jpiGreaterOrEqual;
}

/*
 * Each item of one operand is compared with each of the other, in a loop of
 * PostgreSQL's that nothing interrupts.
 */
static void
walk_comparison(JsonPathItem *item, Walk *w)
{
	Yield left;
	Yield right;

	walk_operands(item, w, &left, &right);
	forbid(w, unwraps_to_many(left, w) && unwraps_to_many(right, w),
		   "it compares parts of the payload that can both have more than one item");

	/* There each comparison of two strings converts both of them as a whole. */
	forbid(
		w,
		is_ordering(item->type) && GetDatabaseEncoding() != PG_UTF8 &&
			GetDatabaseEncoding() != PG_SQL_ASCII &&
			((unwraps_to_many(left, w) && right.digits) ||
			 (unwraps_to_many(right, w) && left.digits)),
		"it orders several items by a part of the payload, and the database's encoding is not UTF8");
}

/*
 * Arithmetic wants one number on each side, and is an error else.  To divide one
 * of 130,000 digits by another takes a second, and cannot be interrupted;
 * everything else is done much faster.
 */
static Yield
walk_arithmetic(JsonPathItem *item, Walk *w)
{
	Yield left;
	Yield right;

	walk_operands(item, w, &left, &right);
	forbid(w, left.fixed || right.fixed, MANY_TIMES);
	forbid(w, right.digits && (item->type == jpiDiv || item->type == jpiMod),
		   "it divides by a part of the payload");
	return (Yield){false, false, left.digits || right.digits, false};
}

/* What is asked for each item of something, of which "@" is one or is not. */
static Yield
walk_repeated(JsonPathItem *item, Walk *w, bool same_current)
{
	Walk  outside = *w;
	Yield y;

	w->repeated = true;
	w->same_current = same_current;
	y = walk(item, w);
	w->repeated = outside.repeated;
	w->same_current = outside.same_current;
	return y;
}

static void
walk_subscripts(JsonPathItem *item, Walk *w, Yield *y)
{
	for (int i = 0; i < item->content.array.nelems; i++)
	{
		JsonPathItem from;
		JsonPathItem to;

		if (jspGetArraySubscript(item, &from, &to, i))
		{
			(void) walk_repeated(&to, w, true);
			y->many = true;
		}
		(void) walk_repeated(&from, w, true);
	}
	y->many |= item->content.array.nelems > 1;
	y->array = true;
}

/* One item of the tree, applied to what comes before it. */
static Yield
walk_item(JsonPathItem *item, Walk *w, Yield y)
{
	const Yield	 constant = {false, false, false, false};
	JsonPathItem arg;

	switch (item->type)
	{
		case jpiNull:
		case jpiString:
		case jpiNumeric:
		case jpiBool:
		case jpiLast:
			return constant;

		case jpiRoot:
			return (Yield){false, true, true, w->repeated};

		case jpiCurrent:
			return (Yield){false, true, true, w->same_current};

		case jpiVariable:
			forbid(w, true, "it names a variable");
			return constant;

		case jpiEqual:
		case jpiNotEqual:
		case jpiLess:
		case jpiGreater:
		case jpiLessOrEqual:
		case jpiGreaterOrEqual:
			walk_comparison(item, w);
			return constant;

		case jpiAnd:
		case jpiOr:
			jspGetLeftArg(item, &arg);
			(void) walk(&arg, w);
			jspGetRightArg(item, &arg);
			(void) walk(&arg, w);
			return constant;

		case jpiNot:
		case jpiIsUnknown:
		case jpiExists:
			jspGetArg(item, &arg);
			(void) walk(&arg, w);
			return constant;

		case jpiStartsWith:
			jspGetRightArg(item, &arg);
			(void) walk(&arg, w);
			jspGetLeftArg(item, &arg);
			(void) walk(&arg, w);
			return constant;

		case jpiLikeRegex:
			jspInitByBuffer(&arg, item->base, item->content.like_regex.expr);
			forbid(w, walk(&arg, w).fixed, MANY_TIMES);
			return constant;

		case jpiAdd:
		case jpiSub:
		case jpiMul:
		case jpiDiv:
		case jpiMod:
			return walk_arithmetic(item, w);

		case jpiPlus:
		case jpiMinus:
			jspGetArg(item, &arg);
			y = walk(&arg, w);
			forbid(w, y.fixed, MANY_TIMES);
			y.many = unwraps_to_many(y, w);
			y.array = false;
			return y;

		case jpiFilter:
			jspGetArg(item, &arg);
			(void) walk_repeated(&arg, w, y.fixed);
			y.many = unwraps_to_many(y, w);
			return y;

		case jpiKey:
			y.many = unwraps_to_many(y, w);
			y.array = true;
			return y;

		case jpiIndexArray:
			walk_subscripts(item, w, &y);
			return y;

			/* They look at an array as a whole, in lax mode as well. */
		case jpiType:
		case jpiSize:
			return (Yield){y.many, false, false, y.fixed};

			/* What is below is yielded once for each level that it is below. */
		case jpiAny:
		case jpiKeyValue:
			forbid(w, ++w->descents > 1,
				   "it has more than one \".**\" or \".keyvalue()\"");
			/* FALLTHROUGH */
		case jpiAnyArray:
		case jpiAnyKey:
			y.many = true;
			y.array = true;
			return y;

			/* The other methods; newer versions have more. */
		default:
			forbid(w, y.fixed, MANY_TIMES);
			y.many = unwraps_to_many(y, w);
			y.array = false;
			return y;
	}
}

/* An expression: an item, and what is applied to its result, in turn. */
static Yield
walk(JsonPathItem *item, Walk *w)
{
	JsonPathItem current = *item;
	JsonPathItem next;
	Yield		 y = {false, false, false, false};

	check_stack_depth();
	for (;;)
	{
		y = walk_item(&current, w, y);
		if (!jspGetNext(&current, &next))
			break;
		current = next;
	}
	forbid(w, y.fixed && unwraps_to_many(y, w), MANY_TIMES);
	return y;
}

/* NULL: nothing is wrong with it. */
static const char *
find_problem(JsonPath *path, bool lax)
{
	JsonPathItem item;
	Walk		 w = {.lax = lax};

	jspInit(&item, path);
	(void) walk(&item, &w);
	return w.problem;
}

/*
 * check_filter(jsonpath): refuses what is true of nothing, because it yields
 * items instead of a truth value, and what cannot be evaluated.
 */
OUTBOX_FUNCTION(outbox_check_filter_1_0, 1)
{
	JsonPath	*path = PG_GETARG_JSONPATH_P(0);
	bool		 lax = (path->header & JSONPATH_LAX) != 0;
	JsonPathItem item;
	const char	*problem;
	char *text = DatumGetCString(DirectFunctionCall1(jsonpath_out, PG_GETARG_DATUM(0)));

	jspInit(&item, path);
	if (!is_predicate(item.type) || jspHasNext(&item))
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("filter \"%s\" is not a predicate", text),
			 errhint(
				 "A filter is true or false, like '$.total > 100'. Perhaps you mean 'exists(%s)'.",
				 text)));
	problem = find_problem(path, lax);
	if (problem)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid filter \"%s\": %s", text, problem),
			 lax && find_problem(path, false) == NULL ?
				 errhint(
					 "Perhaps you mean 'strict %s': in strict mode arrays are not unwrapped, and where a part is missing the delivery is dead. To leave such events out, write 'exists($.a) && exists($.b) && $.a - $.b > 0'.",
					 text) :
				 errhint(
					 "A filter compares parts of the payload with constants, like '$.total > 100' or '$.paid < 0.5 * $.total'.")));
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
	if (result == OUTBOX_FILTER_ERROR || result == OUTBOX_FILTER_TOO_LONG)
		PG_RETURN_NULL();
	PG_RETURN_BOOL(result == OUTBOX_FILTER_YES);
}
