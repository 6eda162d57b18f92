/*
 * attempts.c
 *	  Owns the attempts that have ended and are not in outbox.attempts yet.
 */
#include "base/outbox.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/attempt_run.h"
#include "base/crash_point.h"
#include "base/encoding.h"
#include "base/settings.h"
#include "base/table_rows.h"
#include "log/transaction.h"
#include "store/attempts.h"

typedef struct Attempt
{
	int64		seq;
	TimestampTz started_at;
	pg_uuid_t	event_id;
	int32		endpoint_id;
	int32		attempt;
	float		duration;
	int16		status;
	bool		in_run; /* it is written as a part of a run */
	char	   *error;	/* NULL: none */
	char	   *body;	/* NULL: none */
} Attempt;

/*
 * How many attempts are kept at most while rows cannot be written.  Further ones
 * are only counted.
 */
#define MOST_ATTEMPTS 20000

static MemoryContext attempt_cxt;
static Attempt		*attempts;
static int			 nattempts;
static int			 max_attempts;
static int64		 nlost;

static OutboxDatabase *db;

void
outbox_attempts_init(OutboxDatabase *database)
{
	db = database;
	attempt_cxt = AllocSetContextCreate(TopMemoryContext, "outbox attempts",
										ALLOCSET_DEFAULT_SIZES);
	max_attempts = 1024;
	attempts = MemoryContextAlloc(TopMemoryContext, sizeof(Attempt) * max_attempts);
}

/*
 * Attempts of a delivery begin at different times, by which outbox.attempts tells them
 * apart.
 */
static void
note(const OutboxDelivery *d, int nth, const OutboxOutcome *o, int status,
	 const char *error, bool keep_body)
{
	bool	 good = error == NULL;
	Attempt *a;

	if (outbox_log_attempts == OUTBOX_LOG_ATTEMPTS_NONE ||
		(outbox_log_attempts == OUTBOX_LOG_ATTEMPTS_FAILURES && good))
		return;
	if (nattempts >= MOST_ATTEMPTS)
	{
		nlost++;
		return;
	}
	if (nattempts == max_attempts)
	{
		max_attempts *= 2;
		attempts = repalloc_huge(attempts, sizeof(Attempt) * max_attempts);
	}
	a = &attempts[nattempts++];
	a->seq = d->seq;
	a->started_at = d->started_at + nth;
	a->event_id = d->event->id;
	a->endpoint_id = d->endpoint->id;
	a->attempt = d->attempts + 1;
	a->duration = (float) o->duration;
	a->status = (int16) status;
	a->error = NULL;
	a->body = NULL;
	if (!good)
	{
		MemoryContext old = MemoryContextSwitchTo(attempt_cxt);

		a->error = pstrdup(error);
		if (keep_body && o->body_len > 0)
			a->body = outbox_foreign_text(o->body, o->body_len);
		MemoryContextSwitchTo(old);
	}
}

void
outbox_attempts_lost(const OutboxDelivery *d, const OutboxOutcome *o)
{
	for (int i = 0; i < o->lost; i++)
		note(d, i, o,
			 o->result == OUTBOX_RESULT_UNAVAILABLE && i == o->lost - 1 ? o->status : 0,
			 o->lost_words, false);
}

void
outbox_attempt_ended(const OutboxDelivery *d, const OutboxOutcome *o, const char *error,
					 bool keep_body)
{
	outbox_attempts_lost(d, o);
	note(d, o->lost, o, o->status, error, keep_body);
}

/*
 * Attempts that make a run at least.  A search reads the index of all runs near an event,
 * so there should not be many short ones.
 */
#define RUN_LEAST 8

static inline int
compare(const Attempt *a, const Attempt *b)
{
#define COMPARE(part) \
	if (a->part != b->part) \
	return a->part < b->part ? -1 : 1
	COMPARE(endpoint_id);
	COMPARE(attempt);
	COMPARE(status);
	COMPARE(seq);
	COMPARE(started_at);
#undef COMPARE
	return 0;
}

typedef Attempt *AttemptPointer;

#define ST_SORT sort_attempts
#define ST_ELEMENT_TYPE AttemptPointer
#define ST_COMPARE(a, b) compare(*(a), *(b))
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * Returns how many of these attempts, which are in order, are in one run.  The first one
 * decides which can be.
 */
static int
length_of_run(Attempt *const *sorted, int n)
{
	const Attempt *first = sorted[0];
	int			   length = 1;

	while (length < Min(n, OUTBOX_RUN_MOST) &&
		   sorted[length]->endpoint_id == first->endpoint_id &&
		   sorted[length]->attempt == first->attempt &&
		   sorted[length]->status == first->status &&
		   outbox_run_takes(first->seq, first->started_at, sorted[length]->seq,
							sorted[length]->started_at))
		length++;
	return length;
}

static Datum
packed(Attempt *const *run, int n)
{
	bytea *entries = palloc(VARHDRSZ + n * OUTBOX_RUN_ENTRY);
	uint8 *p = (uint8 *) VARDATA(entries);

	SET_VARSIZE(entries, VARHDRSZ + n * OUTBOX_RUN_ENTRY);
	for (int i = 0; i < n; i++)
	{
		const Attempt *a = run[i];

		p = outbox_run_put(p, run[0]->seq, run[0]->started_at,
						   &(OutboxRunAttempt){.seq = a->seq,
											   .started_at = a->started_at,
											   .duration = a->duration,
											   .event_id = a->event_id});
	}
	return PointerGetDatum(entries);
}

#define RUN_COLUMNS 8

/*
 * Writes successes as runs, where an endpoint has enough of them.  Returns how many
 * attempts these rows hold.
 */
static int
write_runs(int piece)
{
	Attempt **sorted = palloc(sizeof(Attempt *) * nattempts);
	Datum	 *values = palloc(sizeof(Datum) * RUN_COLUMNS * (nattempts / RUN_LEAST));
	bool	 *nulls = palloc0(sizeof(bool) * RUN_COLUMNS * (nattempts / RUN_LEAST));
	int		  nsorted = 0;
	int		  nruns = 0;
	int		  written = 0;

	for (int i = 0; i < nattempts; i++)
	{
		attempts[i].in_run = false;
		if (attempts[i].error == NULL && isfinite(attempts[i].duration))
			sorted[nsorted++] = &attempts[i];
	}
	sort_attempts(sorted, nsorted);
	for (int i = 0, n = 0; i < nsorted; i += n)
	{
		Attempt **run = sorted + i;
		Datum	 *v = values + nruns * RUN_COLUMNS;

		n = length_of_run(run, nsorted - i);
		if (n < RUN_LEAST)
			continue;
		v[0] = Int64GetDatum(run[0]->seq);
		v[1] = Int64GetDatum(run[n - 1]->seq);
		v[2] = TimestampTzGetDatum(run[0]->started_at);
		v[3] = Int32GetDatum(run[0]->endpoint_id);
		v[4] = Int32GetDatum(run[0]->attempt);
		v[5] = Int16GetDatum(run[0]->status);
		nulls[nruns * RUN_COLUMNS + 5] = run[0]->status == 0;
		v[6] = Int16GetDatum(piece);
		v[7] = packed(run, n);
		for (int k = 0; k < n; k++)
			run[k]->in_run = true;
		nruns++;
		written += n;
	}
	if (nruns > 0)
		outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_ATTEMPT_RUNS_0 + piece), nruns,
						   values, nulls);
	return written;
}

#define ATTEMPT_COLUMNS 10

static void
write_rows(int piece, int nrows)
{
	Datum *v = palloc(sizeof(Datum) * ATTEMPT_COLUMNS * nrows);
	bool  *n = palloc0(sizeof(bool) * ATTEMPT_COLUMNS * nrows);
	Datum *values = v;
	bool  *nulls = n;

	for (int i = 0; i < nattempts; i++)
	{
		Attempt *a = &attempts[i];

		if (a->in_run)
			continue;
		v[0] = Int64GetDatum(a->seq);
		v[1] = TimestampTzGetDatum(a->started_at);
		v[2] = UUIDPGetDatum(&a->event_id);
		v[3] = Int32GetDatum(a->endpoint_id);
		v[4] = Int32GetDatum(a->attempt);
		v[5] = Float4GetDatum(a->duration);
		v[6] = Int16GetDatum(a->status);
		n[6] = a->status == 0;
		v[7] = Int16GetDatum(piece);
		n[8] = a->error == NULL;
		v[8] = n[8] ? (Datum) 0 : CStringGetTextDatum(a->error);
		n[9] = a->body == NULL;
		v[9] = n[9] ? (Datum) 0 : CStringGetTextDatum(a->body);
		v += ATTEMPT_COLUMNS;
		n += ATTEMPT_COLUMNS;
	}
	outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_ATTEMPT_LOG_0 + piece), nrows,
					   values, nulls);
}

void
outbox_attempts_write(void)
{
	int piece = (int) pg_atomic_read_u32(&db->attempts_piece);
	int nrows = nattempts;

	if (nattempts == 0)
		return;
	nrows -= write_runs(piece);
	OUTBOX_CRASH_POINT("settle.runs");
	if (nrows > 0)
		write_rows(piece, nrows);
}

void
outbox_attempts_written(void)
{
	if (nlost > 0)
		ereport(WARNING,
				(errmsg("outbox.attempts lacks " INT64_FORMAT
						" attempts, which ended while its rows could not be written",
						nlost)));
	nlost = 0;
	nattempts = 0;
	MemoryContextReset(attempt_cxt);
}

bool
outbox_attempts_wait(void)
{
	return nattempts > 0;
}
