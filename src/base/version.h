/*
 * version.h
 *	  Which library and which SQL objects go together.
 *
 * A function that SQL calls has a symbol that ends in the version in which its
 * contract (arguments, result, what it does to tables) changed last, such as
 * outbox_emit_jsonb_1_0.  A later library keeps the symbols of the scripts that
 * it may meet, so that between its start and ALTER EXTENSION UPDATE the old
 * objects go on working, or are refused in words; and an earlier library lacks
 * those that a new script asks for.
 */
#ifndef OUTBOX_VERSION_H
#define OUTBOX_VERSION_H

#include "base/outbox.h"

#include "access/tupdesc.h"
#include "fmgr.h"

/* A function is not declared as its symbol promises. */
extern _Noreturn void outbox_refuse_contract(FunctionCallInfo fcinfo);

/*
 * The head of each function that SQL calls, instead of "Datum name(…)".
 * Arguments are read without asking how many there are: a declaration that
 * does not fit, left behind by another version, would crash the server.
 */
#define OUTBOX_FUNCTION(symbol, nargs) \
	PG_FUNCTION_INFO_V1(symbol); \
	static inline Datum symbol##_body(PG_FUNCTION_ARGS); \
	Datum				symbol(PG_FUNCTION_ARGS) \
	{ \
		if (unlikely(PG_NARGS() != (nargs))) \
			outbox_refuse_contract(fcinfo); \
		return symbol##_body(fcinfo); \
	} \
	static inline Datum symbol##_body(PG_FUNCTION_ARGS)

/* The same for the columns of the row that it returns. */
static inline void
outbox_expect_columns(FunctionCallInfo fcinfo, TupleDesc desc, int n)
{
	if (unlikely(desc->natts != n))
		outbox_refuse_contract(fcinfo);
}

/* Said wherever library and objects do not fit each other. */
extern int outbox_version_hint(void);

/*
 * NULL: the worker of this library serves objects of that version; else why it
 * does not, in words, palloc'd.
 */
extern char *outbox_version_problem(const char *objects);

#endif /* OUTBOX_VERSION_H */
