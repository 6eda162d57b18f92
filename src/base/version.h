/*
 * version.h
 *	  Which library and which SQL objects fit each other.
 *
 * The symbol of a function that SQL calls ends in a version, such as
 * outbox_emit_jsonb_1_0.  It is the version in which the function's contract changed
 * last: its arguments, its result, or its changes of tables.  A later library keeps the
 * symbols of the scripts that it may meet.  So between its start and ALTER EXTENSION
 * UPDATE, the old objects still work, or are refused with a clear error.  An earlier
 * library lacks the symbols that a new script needs.
 */
#ifndef OUTBOX_VERSION_H
#define OUTBOX_VERSION_H

#include "base/outbox.h"

#include "access/tupdesc.h"

/* Throws (55000): a function is not declared as its symbol requires. */
extern _Noreturn void outbox_refuse_contract(FunctionCallInfo fcinfo);

/*
 * The head of each function that SQL calls, instead of "Datum name(…)".  It checks the
 * number of arguments, because the body reads them without a check.  A declaration of
 * another version that does not fit would otherwise crash the server.
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

/* The same check for the columns of the row that the function returns. */
static inline void
outbox_expect_columns(FunctionCallInfo fcinfo, TupleDesc desc, int n)
{
	if (unlikely(desc->natts != n))
		outbox_refuse_contract(fcinfo);
}

/* The hint of every error that reports a library and objects that do not fit. */
extern int outbox_version_hint(void);

/*
 * Returns NULL if the worker of this library serves objects of that version.
 * Otherwise returns the reason, in words, palloc'd.
 */
extern char *outbox_version_problem(const char *objects);

#endif /* OUTBOX_VERSION_H */
