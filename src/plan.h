/*
 * plan.h
 *	  Statements that a process runs again and again, planned once.
 */
#ifndef OUTBOX_PLAN_H
#define OUTBOX_PLAN_H

#include "outbox.h"

#include "executor/spi.h"

/*
 * Runs a statement in the present SPI connection, with a snapshot of its own;
 * '*plan' is NULL the first time.  Returns how many rows it touched; they are
 * in SPI_tuptable.  No argument is NULL.
 */
extern uint64 outbox_plan_run(SPIPlanPtr *plan, const char *sql, int nargs,
							  Oid *types, Datum *values);

#endif							/* OUTBOX_PLAN_H */
