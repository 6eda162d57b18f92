/*
 * filter.c
 *	  Owns the predicates over payloads that decide, after the topic, whether an
 *	  endpoint gets an event.
 *
 * A filter is a jsonpath of a few forms.  Their time and memory are at most proportional to
 * the length of the filter times the elements of the payload's arrays, and none of them
 * throws an error.  So an evaluation needs neither a timer nor a
 * subtransaction.  README.md has the forms, and why the others are left out.
 */
#include "base/outbox.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "base/version.h"
#include "endpoint/filter.h"

/* Returns true or false.  Sets '*isnull' if the predicate is neither. */
static bool
evaluate(JsonPath *filter, Jsonb *payload, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, 4);
	Datum result;
	Jsonb no_vars = {.root.header = JB_FOBJECT};

	SET_VARSIZE(&no_vars, sizeof(no_vars));
	InitFunctionCallInfoData(*fcinfo, NULL, 4, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = JsonbPGetDatum(payload);
	fcinfo->args[1].value = PointerGetDatum(filter);
	fcinfo->args[2].value = JsonbPGetDatum(&no_vars);
	fcinfo->args[3].value = BoolGetDatum(true); /* silent */
	for (int i = 0; i < 4; i++)
		fcinfo->args[i].isnull = false;
	result = jsonb_path_match(fcinfo);
	*isnull = fcinfo->isnull;
	return !*isnull && DatumGetBool(result);
}

/* The result of an expression, in the order of the cost of comparing it. */
typedef enum Yield
{
	CONSTANT,
	NUMBER, /* of arithmetic */
	PART,	/* one item of the payload, or none */
	PARTS	/* several items of the payload.  In lax mode each part may be an array, which
			 * is unwrapped. */
} Yield;

/* The state of the walk through a filter. */
typedef struct Walk
{
	bool		lax;
	bool		inside;	 /* true inside "?()" */
	bool		members; /* true if it reads all members of objects */
	int			operators;
	const char *problem; /* the first one (NULL: none yet) */
} Walk;

#define OTHER_FORM "it has an operator, a method or an accessor that filters do not have"
#define NO_PREDICATE "it is no predicate"
#define TWO_PARTS "it compares parts of the payload that can both have more than one item"

static void walk_predicate(JsonPathItem *item, Walk *w);

static void
forbid(Walk *w, bool found, const char *problem)
{
	if (found && w->problem == NULL)
		w->problem = problem;
}

/*
 * A number of many digits would be copied, and calculated with, for each item.  To print
 * 1e131000 takes milliseconds, so this is done once.
 */
static void
walk_number(JsonPathItem *item, Walk *w)
{
	Datum digits;

	if (w->problem)
		return;
	digits = DirectFunctionCall1(numeric_out, NumericGetDatum(jspGetNumeric(item)));
	forbid(w, strlen(DatumGetCString(digits)) > OUTBOX_FILTER_MAX_DIGITS,
		   "it has a number of more than 40 characters");
}

static void
walk_index(JsonPathItem *item, Walk *w)
{
	forbid(w, (item->type != jpiNumeric && item->type != jpiLast) || jspHasNext(item),
		   "an index in \"[]\" is neither a number nor \"last\"");
}

/* More than one subscript could yield an item twice, and twice again in the next "[]". */
static bool
walk_subscripts(JsonPathItem *item, Walk *w)
{
	JsonPathItem from;
	JsonPathItem to;
	bool		 range;

	forbid(w, item->content.array.nelems != 1, "it has several subscripts in one \"[]\"");
	range = jspGetArraySubscript(item, &from, &to, 0);
	walk_index(&from, w);
	if (range)
		walk_index(&to, w);
	return range;
}

/* Walks the accessors behind "$" or "@".  None of them yields an item of the payload twice. */
static Yield
walk_path(JsonPathItem *item, Walk *w)
{
	JsonPathItem current = *item;
	JsonPathItem next;
	JsonPathItem arg;
	bool		 many = w->lax;

	while (jspGetNext(&current, &next))
	{
		current = next;
		switch (current.type)
		{
			case jpiKey:
				break;
			case jpiType:
			case jpiSize:
				forbid(w, jspHasNext(&current), OTHER_FORM);
				break;
			case jpiAnyKey:
				w->members = true;
				many = true;
				break;
			case jpiAnyArray:
				many = true;
				break;
			case jpiIndexArray:
				many = walk_subscripts(&current, w) || many;
				break;
			case jpiFilter:
			{
				bool outside = w->inside;

				w->inside = true;
				jspGetArg(&current, &arg);
				walk_predicate(&arg, w);
				w->inside = outside;
				break;
			}
			default:
				forbid(w, true, OTHER_FORM);
		}
	}
	return many ? PARTS : PART;
}

static Yield walk_operand(JsonPathItem *item, Walk *w);

/*
 * A product has as many digits as both of its factors, and so takes the product of their
 * lengths.  One digit beside 1e131000 makes a number of 131,000 digits, so there is no
 * arithmetic for each item of an array.
 */
static Yield
walk_arithmetic(JsonPathItem *item, Walk *w)
{
	bool		 sum = item->type == jpiAdd || item->type == jpiSub;
	JsonPathItem arg;
	Yield		 left;
	Yield		 right;

	check_stack_depth();
	jspGetLeftArg(item, &arg);
	left = walk_operand(&arg, w);
	jspGetRightArg(item, &arg);
	right = walk_operand(&arg, w);
	forbid(w, jspHasNext(item), OTHER_FORM);
	forbid(w, w->inside, "it calculates inside \"?()\"");
	forbid(w, ++w->operators > OUTBOX_FILTER_MAX_OPERATORS,
		   "it has more than 8 of the operators + - * %");
	forbid(w, !sum && (left == NUMBER || right == NUMBER),
		   "it multiplies or divides what is calculated");
	forbid(w, item->type == jpiMul && (left == CONSTANT) == (right == CONSTANT),
		   "it multiplies other than a part of the payload by a number");
	forbid(w, item->type == jpiMod && right != CONSTANT,
		   "it divides by a part of the payload");
	return NUMBER;
}

static Yield
walk_operand(JsonPathItem *item, Walk *w)
{
	switch (item->type)
	{
		case jpiNumeric:
		case jpiNull:
		case jpiString:
		case jpiBool:
			if (item->type == jpiNumeric)
				walk_number(item, w);
			forbid(w, jspHasNext(item), OTHER_FORM);
			return CONSTANT;
		case jpiRoot:
		case jpiCurrent:
			forbid(w, item->type == jpiRoot && w->inside, "it has \"$\" inside \"?()\"");
			return walk_path(item, w);
		case jpiAdd:
		case jpiSub:
		case jpiMul:
		case jpiMod:
			return walk_arithmetic(item, w);
		case jpiVariable:
			forbid(w, true, "it names a variable");
			return CONSTANT;
		default:
			forbid(w, true, OTHER_FORM);
			return CONSTANT;
	}
}

/* PostgreSQL compares each item of one operand with each item of the other. */
static void
walk_comparison(JsonPathItem *item, Walk *w)
{
	JsonPathItem arg;
	Yield		 left;
	Yield		 right;

	jspGetLeftArg(item, &arg);
	left = walk_operand(&arg, w);
	jspGetRightArg(item, &arg);
	right = walk_operand(&arg, w);
	forbid(w, Min(left, right) >= PART && Max(left, right) == PARTS, TWO_PARTS);
}

static void
walk_predicate(JsonPathItem *item, Walk *w)
{
	JsonPathItem arg;

	check_stack_depth();
	forbid(w, jspHasNext(item), NO_PREDICATE);
	switch (item->type)
	{
		case jpiEqual:
		case jpiNotEqual:
		case jpiLess:
		case jpiGreater:
		case jpiLessOrEqual:
		case jpiGreaterOrEqual:
			walk_comparison(item, w);
			break;
		case jpiAnd:
		case jpiOr:
			jspGetLeftArg(item, &arg);
			walk_predicate(&arg, w);
			jspGetRightArg(item, &arg);
			walk_predicate(&arg, w);
			break;
		case jpiNot:
		case jpiIsUnknown:
			jspGetArg(item, &arg);
			walk_predicate(&arg, w);
			break;
		case jpiExists:
			jspGetArg(item, &arg);
			(void) walk_operand(&arg, w);
			break;
		case jpiStartsWith:
			jspGetRightArg(item, &arg);
			(void) walk_operand(&arg, w);
			jspGetLeftArg(item, &arg);
			(void) walk_operand(&arg, w);
			break;
		case jpiLikeRegex:
			forbid(w, true, "it has a regular expression");
			break;
		default:
			forbid(w, true, NO_PREDICATE);
	}
}

static Walk
walk(JsonPath *path, bool lax)
{
	JsonPathItem item;
	Walk		 w = {.lax = lax};

	jspInit(&item, path);
	walk_predicate(&item, &w);
	return w;
}

/* Returns why the filter is refused.  NULL: it is not. */
static const char *
find_problem(JsonPath *path, bool lax)
{
	return walk(path, lax).problem;
}

/*
 * A filter of another form can be stored, by an old dump or a superuser.  It could throw an
 * error, so one takes its place that is neither true nor false of any payload.
 */
JsonPath *
outbox_filter_usable(JsonPath *filter)
{
	if (find_problem(filter, (filter->header & JSONPATH_LAX) != 0) == NULL)
		return filter;
	return DatumGetJsonPathP(
		DirectFunctionCall1(jsonpath_in, CStringGetDatum("\"a\" < 1")));
}

/*
 * Returns how many elements the arrays of a payload have together, and with 'members' how
 * many members its objects.  It may end where that is more than 'max'.
 */
static uint64
count_items(JsonbContainer *c, bool members, uint64 max)
{
	uint32 n = JsonContainerSize(c);
	uint32 nentries = JsonContainerIsObject(c) ? 2 * n : n;
	char  *data = (char *) &c->children[nentries];
	uint64 items = nentries == n || members ? n : 0;
	uint32 offset = 0;

	check_stack_depth();
	for (uint32 i = 0; i < nentries && items <= max; i++)
	{
		if (JBE_ISCONTAINER(c->children[i]))
			items += count_items((JsonbContainer *) (data + INTALIGN(offset)), members,
								 max);
		JBE_ADVANCE_OFFSET(offset, c->children[i]);
	}
	return items;
}

/*
 * Returns what the filter reads of the payload at most, as its length times items.  Each
 * part of it reads each item at most once.  See README.md.
 */
static uint64
work_of(JsonPath *filter, Jsonb *payload)
{
	uint64 size = VARSIZE(payload);
	uint64 items = size / sizeof(JEntry);

	if (VARSIZE(filter) * items > OUTBOX_FILTER_MAX_WORK / OUTBOX_FILTER_LONG)
		items = count_items(&payload->root, walk(filter, false).members,
							OUTBOX_FILTER_MAX_WORK / VARSIZE(filter));
	return VARSIZE(filter) * Max(items, size / OUTBOX_FILTER_BYTES);
}

int64
outbox_filter_time(JsonPath *filter, Jsonb *payload)
{
	uint64 work = payload ? work_of(filter, payload) : 0;

	if (work <= OUTBOX_FILTER_MAX_WORK / OUTBOX_FILTER_LONG ||
		work > OUTBOX_FILTER_MAX_WORK)
		return 0;
	return work * OUTBOX_FILTER_MAX_TIME / OUTBOX_FILTER_MAX_WORK;
}

/* Evaluates a filter, if it is not too long for this payload. */
OutboxFilterResult
outbox_filter(JsonPath *filter, Jsonb *payload)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext cxt;
	bool		  isnull;
	bool		  match;

	if (payload == NULL)
		return OUTBOX_FILTER_NO;
	if (work_of(filter, payload) > OUTBOX_FILTER_MAX_WORK)
		return OUTBOX_FILTER_TOO_LONG;
	cxt = AllocSetContextCreate(caller, "outbox filter", ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(cxt);
	match = evaluate(filter, payload, &isnull);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(cxt);
	return isnull ? OUTBOX_FILTER_ERROR : match ? OUTBOX_FILTER_YES : OUTBOX_FILTER_NO;
}

void
outbox_filter_check(JsonPath *path)
{
	bool		lax = (path->header & JSONPATH_LAX) != 0;
	const char *problem;
	char	   *text = "";

	if (VARSIZE(path) > OUTBOX_MAX_FILTER)
		ereport(
			ERROR,
			(OUTBOX_INVALID("filter"),
			 errmsg("filter takes %d bytes", (int) VARSIZE(path)),
			 errhint(
				 "Use at most %d bytes, as pg_column_size() counts them. A comparison takes about 60.",
				 OUTBOX_MAX_FILTER)));
	problem = find_problem(path, lax);
	if (problem)
	{
		text = DatumGetCString(DirectFunctionCall1(jsonpath_out, PointerGetDatum(path)));
		text[pg_mbcliplen(text, strlen(text), OUTBOX_MAX_FILTER)] = '\0';
	}
	if (problem && strcmp(problem, NO_PREDICATE) == 0)
		ereport(
			ERROR,
			(OUTBOX_INVALID("filter"), errmsg("filter \"%s\" is not a predicate", text),
			 errhint(
				 "A filter is true or false, like '$.total > 100'. Perhaps you mean 'exists(%s)'.",
				 text)));
	if (problem)
		ereport(
			ERROR,
			(OUTBOX_INVALID("filter"), errmsg("invalid filter \"%s\": %s", text, problem),
			 lax && find_problem(path, false) == NULL ?
				 errhint(
					 "Perhaps you mean 'strict %s'. In strict mode arrays are not unwrapped, and a missing part makes the delivery a dead letter. To leave such events out, write 'exists($.a) && exists($.b) && $.a - $.b > 0'.",
					 text) :
				 errhint(
					 "A filter compares parts of the payload with constants, like '$.total > 100', '$.name starts with \"a\"' or '$.paid < 0.5 * $.total'.")));
}

/*
 * filter_matches(payload jsonb, filter jsonpath): NULL if the filter is neither
 * true nor false, or too long for the payload.
 */
OUTBOX_FUNCTION(outbox_filter_matches_1_0, 2)
{
	OutboxFilterResult result;

	if (PG_ARGISNULL(1))
		PG_RETURN_BOOL(true);
	result = outbox_filter(outbox_filter_usable(PG_GETARG_JSONPATH_P(1)),
						   PG_ARGISNULL(0) ? NULL : PG_GETARG_JSONB_P(0));
	if (result == OUTBOX_FILTER_ERROR || result == OUTBOX_FILTER_TOO_LONG)
		PG_RETURN_NULL();
	PG_RETURN_BOOL(result == OUTBOX_FILTER_YES);
}
