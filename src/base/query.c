/*
 * query.c
 *	  Owns how a statement is run, and how a saved plan is made.
 */
#include "base/query.h"

/* The arguments as SPI wants them. */
typedef struct SpiArgs
{
	int	  n;
	Oid	  types[lengthof(((OutboxStatement *) NULL)->args)];
	Datum values[lengthof(((OutboxStatement *) NULL)->args)];
	char  nulls[lengthof(((OutboxStatement *) NULL)->args)];
} SpiArgs;

static SpiArgs
args_of(const OutboxStatement *s)
{
	SpiArgs a = {0};

	for (; OidIsValid(s->args[a.n].type); a.n++)
	{
		a.types[a.n] = s->args[a.n].type;
		a.values[a.n] = s->args[a.n].value;
		a.nulls[a.n] = s->args[a.n].null ? 'n' : ' ';
	}
	return a;
}

static uint64
check(const char *sql, int rc)
{
	if (rc < 0)
		elog(ERROR, "\"%s\" failed: %s", sql, SPI_result_code_string(rc));
	return SPI_processed;
}

uint64
outbox_plan_run_statement(SPIPlanPtr *plan, const OutboxStatement *s)
{
	SpiArgs a = args_of(s);

	if (*plan == NULL)
	{
		SPIPlanPtr p = SPI_prepare(s->sql, a.n, a.types);

		if (p == NULL)
			elog(ERROR, "could not prepare \"%s\": %s", s->sql,
				 SPI_result_code_string(SPI_result));
		SPI_keepplan(p);
		*plan = p;
	}
	return check(s->sql, SPI_execute_plan(*plan, a.values, a.nulls, false, 0));
}

uint64
outbox_query_statement(const OutboxStatement *s)
{
	SpiArgs a = args_of(s);

	return check(s->sql,
				 SPI_execute_with_args(s->sql, a.n, a.types, a.values, a.nulls, false,
									   0));
}
