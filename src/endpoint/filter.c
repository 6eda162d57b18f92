/*
 * filter.c
 *	  Owns the predicates over payloads that decide, after the topic, whether an
 *	  endpoint gets an event.
 */
#include "base/outbox.h"

#include <signal.h>
#include <sys/time.h>

#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "regex/regex.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/version.h"
#include "endpoint/filter.h"

/* Of the worker's CPU.  An evaluation that is running at two ticks is ended. */
#define TICK_US (OUTBOX_FILTER_MAX_MS * 1000 / 2)

static volatile sig_atomic_t evaluation; /* number of the running one (0: none) */
static volatile sig_atomic_t evaluation_at_tick;
static volatile sig_atomic_t out_of_time;

/*
 * ITIMER_PROF counts only while the process runs.  So a busy machine, or one that
 * was asleep, makes no evaluation take too long.  The evaluation is ended in the
 * way of a query cancel.  A cancel that is pending already is left alone.
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
 * The timer keeps ticking from here on, twenty times in each second of CPU that the
 * worker uses.  To set and stop a timer for each event would cost more than most
 * filters do.
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

/*
 * True if the evaluation ran out of time.  Then the pending cancel is removed, so
 * that it does not hit what comes later.
 */
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

/* Returns true or false.  Sets '*isnull' if the predicate is neither. */
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
 * Even a silent evaluation can throw an error, for example where a comparison of
 * times needs a time zone.  One event must end neither the worker nor a query over
 * all events, so the error is caught.
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
		 * A cancel or a lack of resources does not come from the event.  Every
		 * other error does, such as a payload that is nested too deep.
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
 * A filter is accepted only if its time and memory are linear in the size of the
 * payload, whatever the payload is.  Refused are expressions that read one part
 * again for each item of another.
 *
 * So each expression is described by what it can yield:
 *	many	more than one item
 *	array	an array, which in lax mode an operand or an accessor unwraps
 *	digits	a number or a text of any length
 *	fixed	the same value each time that it is evaluated
 */
typedef struct Yield
{
	bool many;
	bool array;
	bool digits;
	bool fixed;
} Yield;

/* The state of the walk through the parts of a filter. */
typedef struct Walk
{
	bool		lax;
	bool		repeated;	  /* true inside "?()" or "[]": evaluated for each of several
							   * items */
	bool		same_current; /* true if "@" is the same for all of them */
	int			descents;
	const char *problem;
} Walk;

#define MANY_TIMES \
	"inside \"?()\" or \"[]\" it may only compare one item of a part that stays the same"

#define SLOW_REGEX "its regular expression has a back-reference or a lookaround"

static Yield walk(JsonPathItem *item, Walk *w);

/*
 * True if it yields several items as an operand, or as what a method is applied to,
 * where arrays are unwrapped.
 */
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

/*
 * A back-reference takes exponential time.  A lookaround reads the rest of the text again
 * at each character, and so does one in another.  All else is linear.  The compiler of
 * regular expressions notes what it met.
 */
static bool
is_slow_regex(const JsonPathItem *item)
{
	text *pattern = cstring_to_text_with_len(item->content.like_regex.pattern,
											 item->content.like_regex.patternlen);
	int	  flags = outbox_regex_flags(item->content.like_regex.flags);

	return (RE_compile_and_cache(pattern, flags, DEFAULT_COLLATION_OID)->re_info &
			(REG_UBACKREF | REG_ULOOKAROUND)) != 0;
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
 * PostgreSQL compares each item of one operand with each item of the other, in a
 * loop that cannot be interrupted.
 */
static void
walk_comparison(JsonPathItem *item, Walk *w)
{
	Yield left;
	Yield right;

	walk_operands(item, w, &left, &right);
	forbid(w, unwraps_to_many(left, w) && unwraps_to_many(right, w),
		   "it compares parts of the payload that can both have more than one item");

	/*
	 * In other encodings each comparison of two strings converts both as a whole.
	 */
	forbid(
		w,
		is_ordering(item->type) && GetDatabaseEncoding() != PG_UTF8 &&
			GetDatabaseEncoding() != PG_SQL_ASCII &&
			((unwraps_to_many(left, w) && right.digits) ||
			 (unwraps_to_many(right, w) && left.digits)),
		"it orders several items by a part of the payload, and the database's encoding is not UTF8");
}

/*
 * Arithmetic needs one number on each side.  Anything else is an error.  To divide
 * a number of 130,000 digits by another takes a second and cannot be interrupted.
 * Everything else is much faster.
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

/*
 * Walks what is evaluated for each item of something.  'same_current' is true if
 * "@" is the same for all of these items.
 */
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

/* One item of the tree, applied to what comes before it, which yields 'y'. */
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
			forbid(w, is_slow_regex(item), SLOW_REGEX);
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

			/* They take an array as a whole, in lax mode as well. */
		case jpiType:
		case jpiSize:
			return (Yield){y.many, false, false, y.fixed};

			/* They yield a part once for each level that it is below. */
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

			/* The other methods.  Newer versions have more of them. */
		default:
			forbid(w, y.fixed, MANY_TIMES);
			y.many = unwraps_to_many(y, w);
			y.array = false;
			return y;
	}
}

/* An expression: an item, and the items that are applied to its result in turn. */
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

/* Returns why the filter is refused.  NULL: it is not. */
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
 * check_filter(jsonpath): throws an error for what can never be true, because it
 * yields items instead of a truth value, and for a filter that could take too long.
 */
OUTBOX_FUNCTION(outbox_check_filter_1_0, 1)
{
	JsonPath	*path = PG_GETARG_JSONPATH_P(0);
	bool		 lax = (path->header & JSONPATH_LAX) != 0;
	JsonPathItem item;
	const char	*problem;
	char *text = DatumGetCString(DirectFunctionCall1(jsonpath_out, PG_GETARG_DATUM(0)));

	if (strlen(text) > OUTBOX_MAX_FILTER)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("filter has %zu bytes", strlen(text)),
				 errhint("Use at most %d bytes.", OUTBOX_MAX_FILTER)));
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
			 strcmp(problem, SLOW_REGEX) == 0 ?
				 errhint(
					 "Leave out \\1 and the like, (?=, (?!, (?<= and (?<!. Several conditions can be joined with && and !.") :
				 lax && find_problem(path, false) == NULL ?
				 errhint(
					 "Perhaps you mean 'strict %s'. In strict mode arrays are not unwrapped, and a missing part makes the delivery a dead letter. To leave such events out, write 'exists($.a) && exists($.b) && $.a - $.b > 0'.",
					 text) :
				 errhint(
					 "A filter compares parts of the payload with constants, like '$.total > 100' or '$.paid < 0.5 * $.total'.")));
	PG_RETURN_VOID();
}

/*
 * filter_matches(payload jsonb, filter jsonpath): NULL if the filter is neither
 * true nor false, or took too long.
 */
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
