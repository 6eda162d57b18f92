/*
 * origin.c
 *	  Owns the question whose log this is: a copy must not send what its original
 *	  sends.
 *
 * The row of outbox.origins is made when the log gets its first endpoint, or is
 * first shortened: late, because a dump is restored table by table, and a
 * worker that claimed the half of it that is there already would serve the
 * copy.  For the same reason a single row of somebody else makes it a copy.
 */
#include "outbox.h"

#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "origin.h"
#include "plan.h"
#include "version.h"

static Datum
first_column(int i, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i, isnull);
}

OutboxOrigin
outbox_origin(int64 *epoch, bool *zero)
{
	Datum		args[2] = {Int64GetDatum((int64) GetSystemIdentifier()),
	ObjectIdGetDatum(MyDatabaseId)};
	bool		isnull;
	int64		rows;

	outbox_query("SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE"
			" system_identifier OPERATOR(pg_catalog.=) $1"
			" AND database_oid OPERATOR(pg_catalog.=) $2),"
			" pg_catalog.max(epoch), pg_catalog.bool_or(first),"
			" pg_catalog.max(instance_name) FROM outbox.origins",
			2, (Oid[]) {INT8OID, OIDOID}, args, NULL);
	rows = DatumGetInt64(first_column(1, &isnull));
	if (rows == 0)
		return OUTBOX_ORIGIN_NONE;
	if (rows != DatumGetInt64(first_column(2, &isnull)))
		return OUTBOX_ORIGIN_FOREIGN;
	*epoch = DatumGetInt64(first_column(3, &isnull));
	*zero = DatumGetBool(first_column(4, &isnull));
	return strcmp(TextDatumGetCString(first_column(5, &isnull)),
				  outbox_instance_name) == 0 ?
		OUTBOX_ORIGIN_OURS : OUTBOX_ORIGIN_OTHER_INSTANCE;
}

static int64
random_epoch(void)
{
	uint64		epoch;

	do
	{
		if (!pg_strong_random(&epoch, sizeof(epoch)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random numbers")));
		epoch &= PG_INT64_MAX;
	} while (epoch == 0);
	return (int64) epoch;
}

void
outbox_origin_claim(void)
{
	Datum		args[4] = {Int64GetDatum(random_epoch()),
		Int64GetDatum((int64) GetSystemIdentifier()),
	ObjectIdGetDatum(MyDatabaseId), CStringGetTextDatum(outbox_instance_name)};

	/* One at a time; conflicts with the lock of whoever inserts. */
	outbox_query("LOCK TABLE outbox.origins IN SHARE ROW EXCLUSIVE MODE", 0, NULL, NULL, NULL);
	if (outbox_query("INSERT INTO outbox.origins"
			" (epoch, system_identifier, database_oid, instance_name, first)"
			" SELECT $1, $2, $3, $4, true"
			" WHERE NOT EXISTS (SELECT 1 FROM outbox.origins)",
			4, (Oid[]) {INT8OID, INT8OID, OIDOID, TEXTOID}, args, NULL) > 0)
		CacheInvalidateRelcacheByRelid(get_relname_relid("origins",
														 get_namespace_oid(OUTBOX_SCHEMA, false)));
}

/* claim_log(): what create_endpoint() begins with. */
OUTBOX_FUNCTION(outbox_claim_log_1_0, 0)
{
	(void) fcinfo;
	SPI_connect();
	outbox_origin_claim();
	SPI_finish();
	PG_RETURN_VOID();
}
