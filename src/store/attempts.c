/*
 * attempts.c
 *	  Owns the attempts that have ended and are not in outbox.attempts yet.
 */
#include "base/outbox.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

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
	char	   *error; /* NULL: none */
	char	   *body;  /* NULL: none */
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

void
outbox_attempt_ended(const OutboxDelivery *d, const OutboxOutcome *o, const char *error,
					 bool keep_body)
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
	a->started_at = d->started_at;
	a->event_id = d->event->id;
	a->endpoint_id = d->endpoint->id;
	a->attempt = d->attempts + 1;
	a->duration = (float) o->duration;
	a->status = (int16) o->status;
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

#define ATTEMPT_COLUMNS 10

void
outbox_attempts_write(void)
{
	int	   piece = (int) pg_atomic_read_u32(&db->attempts_piece);
	Datum *values;
	bool  *nulls;

	if (nattempts == 0)
		return;
	values = palloc(sizeof(Datum) * ATTEMPT_COLUMNS * nattempts);
	nulls = palloc0(sizeof(bool) * ATTEMPT_COLUMNS * nattempts);
	for (int i = 0; i < nattempts; i++)
	{
		Attempt *a = &attempts[i];
		Datum	*v = values + i * ATTEMPT_COLUMNS;
		bool	*n = nulls + i * ATTEMPT_COLUMNS;

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
	}
	outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_ATTEMPT_LOG_0 + piece), nattempts,
					   values, nulls);
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
