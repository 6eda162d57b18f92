/*
 * attempt_runs.c
 *	  Owns how SQL reads runs of attempts.
 */
#include "base/outbox.h"

#include "funcapi.h"

#include "base/attempt_run.h"
#include "base/table_rows.h"
#include "base/version.h"

static void
refuse_run(int64 seq_low)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_DATA_CORRUPTED),
		 errmsg(
			 "a row of outbox.attempt_runs is damaged: that of the events from " INT64_FORMAT,
			 seq_low),
		 errhint(
			 "Delete the rows that have this seq_low. They hold requests that succeeded.")));
}

/*
 * run_attempts(event_seq int8, seq_low int8, run_at timestamptz, entries bytea): a row for
 * each attempt of the run, or only of that event (0: of all).
 */
OUTBOX_FUNCTION(outbox_run_attempts_1_0, 4)
{
	int64		 only = PG_GETARG_INT64(0);
	int64		 seq_low = PG_GETARG_INT64(1);
	const bytea *entries = PG_GETARG_BYTEA_PP(3);
	OutboxRun	 run;
	OutboxRows	 row = {0};

	InitMaterializedSRF(fcinfo, 0);
	if (!outbox_run_open(&run, seq_low, PG_GETARG_TIMESTAMPTZ(2), VARDATA_ANY(entries),
						 VARSIZE_ANY_EXHDR(entries)))
		refuse_run(seq_low);
	for (int i = only ? outbox_run_find(&run, only) : 0; i < run.n; i++)
	{
		OutboxRunAttempt attempt;

		if (!outbox_run_get(&run, i, &attempt))
			refuse_run(seq_low);
		if (only && attempt.seq != only)
			break;
		put_value(&row, Int64GetDatum(attempt.seq));
		put_value(&row, TimestampTzGetDatum(attempt.started_at));
		put_value(&row, UUIDPGetDatum(&attempt.event_id));
		put_value(&row, Float4GetDatum(attempt.duration));
		outbox_add_row(fcinfo, &row);
	}
	return (Datum) 0;
}
