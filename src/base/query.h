/*
 * query.h
 *	  Statements in the present SPI connection.
 *
 * Each takes its locks first and its snapshot then (read_only = false): a
 * snapshot older than the lock would see a table that was truncated in between
 * as empty.  Both return how many rows were touched, which are in
 * SPI_tuptable; 'nulls' as SPI has it, NULL: no argument is NULL.
 */
#ifndef OUTBOX_QUERY_H
#define OUTBOX_QUERY_H

#include "base/outbox.h"

#include "executor/spi.h"

/* For what runs again and again: planned once; '*plan' is NULL the first time. */
extern uint64 outbox_plan_run(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types,
							  Datum *values, const char *nulls);

/* For what runs now and then. */
extern uint64 outbox_query(const char *sql, int nargs, Oid *types, Datum *values,
						   const char *nulls);

#endif /* OUTBOX_QUERY_H */
