/*
 * query.h
 *	  Running statements in the present SPI connection.
 *
 * Each takes its locks first and its snapshot afterwards (read_only = false).  With a
 * snapshot older than the lock, a table that was truncated in between would appear
 * empty.  Both return the number of rows, which are in SPI_tuptable, and throw.  The
 * arguments follow the statement: outbox_query("... $1 ...", arg_int8(seq)).  A file that
 * includes this needs no header for SPI, for rows, or for the types of the arguments.
 */
#ifndef OUTBOX_QUERY_H
#define OUTBOX_QUERY_H

#include "base/outbox.h"

#include "utils/xid8.h"

#include "base/table_rows.h"

/* For a statement that runs often: planned once, where it stands.  Its text never changes. */
#define outbox_plan_run(...) \
	({ \
		static SPIPlanPtr plan; \
		outbox_plan_run_kept(&plan, __VA_ARGS__); \
	})

/* The same, for the caller's plan.  '*plan' is NULL the first time. */
#define outbox_plan_run_kept(plan, ...) \
	outbox_plan_run_statement(plan, OUTBOX_STATEMENT(__VA_ARGS__, {0}))

/* For a statement that runs rarely: planned each time. */
#define outbox_query(...) outbox_query_statement(OUTBOX_STATEMENT(__VA_ARGS__, {0}))

/* An argument.  'type' 0: the one before was the last. */
typedef struct OutboxArg
{
	Oid	  type;
	Datum value;
	bool  null;
} OutboxArg;

typedef struct OutboxStatement
{
	const char *sql;
	OutboxArg	args[16];
} OutboxStatement;

#define OUTBOX_STATEMENT(sql, ...) (&(OutboxStatement){sql, {__VA_ARGS__}})

extern uint64 outbox_plan_run_statement(SPIPlanPtr *plan, const OutboxStatement *s);
extern uint64 outbox_query_statement(const OutboxStatement *s);

#define arg_or_null(type, value, null) ((OutboxArg){type, value, null})
#define arg_datum(type, value) arg_or_null(type, value, false)
#define arg_bool(value) arg_datum(BOOLOID, BoolGetDatum(value))
#define arg_int2(value) arg_datum(INT2OID, Int16GetDatum(value))
#define arg_int4(value) arg_datum(INT4OID, Int32GetDatum(value))
#define arg_int8(value) arg_datum(INT8OID, Int64GetDatum(value))
#define arg_int8s(values, n) arg_datum(INT8ARRAYOID, outbox_int8_array(values, n))
#define arg_oid(value) arg_datum(OIDOID, ObjectIdGetDatum(value))
#define arg_time(value) arg_datum(TIMESTAMPTZOID, TimestampTzGetDatum(value))
#define arg_xid8(value) arg_datum(XID8OID, FullTransactionIdGetDatum(value))

/* 'value' NULL: the argument is NULL. */
static inline OutboxArg
arg_text(const char *value)
{
	return arg_or_null(TEXTOID, value ? CStringGetTextDatum(value) : (Datum) 0,
					   value == NULL);
}

#endif /* OUTBOX_QUERY_H */
