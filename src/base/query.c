/*
 * query.c
 *	  Owns how a statement is run, and how a saved plan is made.
 */
#include "base/query.h"

uint64
outbox_plan_run(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types, Datum *values,
				const char *nulls)
{
	int rc;

	if (*plan == NULL)
	{
		SPIPlanPtr p = SPI_prepare(sql, nargs, types);

		if (p == NULL)
			elog(ERROR, "could not prepare \"%s\": %s", sql,
				 SPI_result_code_string(SPI_result));
		SPI_keepplan(p);
		*plan = p;
	}
	rc = SPI_execute_plan(*plan, values, nulls, false, 0);
	if (rc < 0)
		elog(ERROR, "\"%s\" failed: %s", sql, SPI_result_code_string(rc));
	return SPI_processed;
}

uint64
outbox_query(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls)
{
	int rc = SPI_execute_with_args(sql, nargs, types, values, nulls, false, 0);

	if (rc < 0)
		elog(ERROR, "\"%s\" failed: %s", sql, SPI_result_code_string(rc));
	return SPI_processed;
}
