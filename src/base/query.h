/*
 * query.h
 *	  Running statements in the present SPI connection.
 *
 * Each takes its locks first and its snapshot afterwards (read_only = false).  With a
 * snapshot older than the lock, a table that was truncated in between would appear
 * empty.  Both return the number of rows, which are in SPI_tuptable.  'nulls' is as in
 * SPI, and NULL if no argument is NULL.  Both throw.
 */
#ifndef OUTBOX_QUERY_H
#define OUTBOX_QUERY_H

#include "base/outbox.h"

#include "executor/spi.h"

/* For a statement that runs often: planned once.  '*plan' is NULL the first time. */
extern uint64 outbox_plan_run(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types,
							  Datum *values, const char *nulls);

/* For a statement that runs rarely: planned each time. */
extern uint64 outbox_query(const char *sql, int nargs, Oid *types, Datum *values,
						   const char *nulls);

#endif /* OUTBOX_QUERY_H */
