/*
 * attempts.c
 *	  Owns the attempts that have ended and are not in outbox.attempts yet, and how SQL
 *	  reads runs of attempts.
 */
#include "base/outbox.h"

#include <math.h>

#include "funcapi.h"

#include "base/attempt_run.h"
#include "base/crash_point.h"
#include "base/encoding.h"
#include "base/settings.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "endpoint/batch.h"
#include "endpoint/tally.h"
#include "log/transaction.h"
#include "store/attempts.h"

/* The parts of an attempt that most attempts do not have. */
typedef struct Details
{
	OutboxTimes times; /* -1: not known */
	char	   *error; /* NULL: none, as the next two */
	char	   *head;
	char	   *body;
} Details;

static const Details no_details = {.times = {-1, -1, -1, -1}};

typedef struct Attempt
{
	int64		   seq;
	TimestampTz	   started_at;
	pg_uuid_t	   event_id;
	int32		   endpoint_id;
	int32		   attempt;
	float		   duration;
	int16		   status;
	int16		   cause;
	bool		   in_run; /* it is written as a part of a run */
	const Details *details;
} Attempt;

/*
 * How many attempts are kept at most while rows cannot be written.  Further ones
 * are only counted.
 */
#define MOST_ATTEMPTS 20000

/*
 * Bytes of answers that are kept at most until then.  Further attempts have none.  Rows are
 * copies, and tuples copies of these, so a settle takes three times as much for a while.
 */
#define MOST_BYTES (8 * 1024 * 1024)

/*
 * Bytes of answers to failed attempts that are kept for a tenant, or for an endpoint without
 * one: so many a second, and so many more at once.  Further ones have no answer.
 */
#define FAILED_BYTES (32 * 1024)
#define FAILED_AT_ONCE (256 * 1024)

/*
 * Why a request was sent, as outbox.attempt_cause() in SQL names it.  Stored with it are the
 * redelivery that its header named, times CAUSE_REDELIVERY, and CAUSE_HTTP_2 if it was
 * answered over HTTP/2.
 */
#define CAUSE_REDELIVERY 10
#define CAUSE_HTTP_2 100
typedef enum Cause
{
	CAUSE_FIRST,
	CAUSE_RETRY = OUTBOX_REDELIVERY_RETRY,
	CAUSE_REPLAY = OUTBOX_REDELIVERY_REPLAY,
	CAUSE_RESEND = OUTBOX_REDELIVERY_RESEND,
	CAUSE_TEST
} Cause;

static MemoryContext attempt_cxt;
static Attempt		*attempts;
static int			 nattempts;
static int			 max_attempts;
static size_t		 nbytes; /* of answers */
static int64		 nlost;

void
outbox_attempts_init(void)
{
	attempt_cxt = AllocSetContextCreate(TopMemoryContext, "outbox attempts",
										ALLOCSET_DEFAULT_SIZES);
}

/* Which of its attempts are remembered, and how much of them: an OutboxLogAttempts. */
static int
level_of(const OutboxEndpoint *ep)
{
	return ep->config.log_attempts < 0 ? outbox_log_attempts : ep->config.log_attempts;
}

bool
outbox_attempts_keep_good(const OutboxEndpoint *ep)
{
	return level_of(ep) == OUTBOX_LOG_ATTEMPTS_ANSWERS;
}

/* send_test() alone sets the header. */
static bool
is_test(const OutboxEvent *event)
{
	JsonbValue value;

	return event->headers &&
		getKeyJsonValueFromContainer(&event->headers->root, "outbox-test",
									 strlen("outbox-test"), &value) != NULL;
}

static Cause
cause_of(const OutboxDelivery *d)
{
	if (d->attempts > 0 || (d->first_attempt_at != 0 && !d->unsent))
		return CAUSE_RETRY;
	if (d->redelivery != OUTBOX_FIRST_DELIVERY)
		return (Cause) d->redelivery;
	return is_test(d->event) ? CAUSE_TEST : CAUSE_FIRST;
}

static char *
kept_text(const char *text, size_t len)
{
	if (len == 0 || nbytes + len > MOST_BYTES)
		return NULL;
	nbytes += len;
	return outbox_foreign_text(text, len);
}

static bool
may_keep_failed(const OutboxEndpoint *ep, size_t len)
{
	TimestampTz *paid_at = ep->tenant ? &ep->tenant->flow.answers_paid_at :
										&ep->lists->flow.answers_paid_at;
	TimestampTz	 now = GetCurrentTimestamp();
	TimestampTz	 latest = now + FAILED_AT_ONCE * USECS_PER_SEC / FAILED_BYTES;
	TimestampTz	 paid = Max(Min(*paid_at, latest), now) +
		(int64) len * USECS_PER_SEC / FAILED_BYTES;

	if (paid > latest)
		return false;
	*paid_at = paid;
	return true;
}

/*
 * Attempts of a delivery begin at different times, by which outbox.attempts tells them
 * apart.  Returns true if a part of the answer is kept.
 */
static bool
note(const OutboxDelivery *d, int nth, const OutboxOutcome *o, int status,
	 const char *error, bool keep_answer)
{
	int		 level = level_of(d->endpoint);
	bool	 good = error == NULL;
	Attempt *a;

	if (level == OUTBOX_LOG_ATTEMPTS_NONE ||
		(level == OUTBOX_LOG_ATTEMPTS_FAILURES && good))
		return false;
	if (nattempts >= MOST_ATTEMPTS)
	{
		nlost++;
		return false;
	}
	outbox_room(attempts, nattempts, max_attempts, TopMemoryContext);
	a = &attempts[nattempts++];
	a->seq = d->seq;
	a->started_at = d->started_at + nth;
	a->event_id = d->event->id;
	a->endpoint_id = d->endpoint->id;
	a->attempt = d->attempts + 1;
	a->duration = (float) o->duration;
	a->status = (int16) status;
	a->cause = (int16) (cause_of(d) + CAUSE_REDELIVERY * d->redelivery +
						(o->http_2 && nth == o->lost ? CAUSE_HTTP_2 : 0));
	a->details = &no_details;
	if (!good || level == OUTBOX_LOG_ATTEMPTS_ANSWERS)
	{
		MemoryContext old = MemoryContextSwitchTo(attempt_cxt);
		Details		 *details = palloc(sizeof(Details));

		*details = no_details;
		if (!good)
			details->error = pstrdup(error);
		if (o->times && nth == o->lost)
			details->times = *o->times;
		if (keep_answer &&
			(good || may_keep_failed(d->endpoint, o->head_len + o->body_len)))
		{
			details->head = kept_text(o->head, o->head_len);
			details->body = kept_text(o->body, o->body_len);
		}
		a->details = details;
		MemoryContextSwitchTo(old);
	}
	return a->details->head || a->details->body;
}

void
outbox_attempts_lost(const OutboxDelivery *d, const OutboxOutcome *o)
{
	for (int i = 0; i < o->lost; i++)
		(void) note(d, i, o,
					o->result == OUTBOX_RESULT_UNAVAILABLE && i == o->lost - 1 ?
						o->status :
						0,
					o->lost_words, false);
}

bool
outbox_attempt_ended(const OutboxDelivery *d, const OutboxOutcome *o, const char *error,
					 bool keep_answer)
{
	outbox_attempts_lost(d, o);
	return note(d, o->lost, o, o->status, error, keep_answer);
}

static const char *
why_broken_off(const OutboxEndpoint *ep)
{
	if (ep->member.dropped)
		return "the endpoint was dropped before an answer came";
	if (ep->member.recreate)
		return "the endpoint was changed or moved before an answer came";
	return "the worker ended before an answer came";
}

/* What is sent again does not count as failed: its receiver has done nothing wrong. */
void
outbox_attempts_broken_off(OutboxDelivery *d, TimestampTz now)
{
	const OutboxOutcome o = {.result = OUTBOX_RESULT_FAILED,
							 .failure = OUTBOX_FAILURE_TIMEOUT,
							 .duration = Max(now - d->started_at, 0) / 1000.0};

	for (int i = 0; i < (d->batch ? d->batch->n : 1); i++)
	{
		(void) outbox_attempt_ended(d->batch ? d->batch->members[i].delivery : d, &o,
									why_broken_off(d->endpoint), false);
		if (d->endpoint->member.dropped)
			outbox_tally_failure(d->endpoint, &o);
	}
}

void
outbox_attempts_worker_ends(OutboxEndpoint *ep, TimestampTz now)
{
	for (OutboxDelivery *d = NULL;
		 (d = outbox_delivery_next(&ep->queue->in_flight, d)) != NULL;)
		if (d->batch == NULL || d == d->batch->members[0].delivery)
			outbox_attempts_broken_off(d, now);
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
	COMPARE(cause);
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
		   sorted[length]->cause == first->cause &&
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

/* True if a run has a place for all that is known of it. */
static bool
is_plain(const Attempt *a)
{
	const Details *details = a->details;

	return details->error == NULL && details->head == NULL && details->body == NULL &&
		details->times.first_byte < 0 && isfinite(a->duration);
}

/*
 * Writes successes as runs, where an endpoint has enough of them.
 */
static void
write_runs(int piece)
{
	Attempt	 **sorted = palloc(sizeof(Attempt *) * nattempts);
	OutboxRows rows = {0};
	int		   nsorted = 0;

	for (int i = 0; i < nattempts; i++)
	{
		attempts[i].in_run = false;
		if (is_plain(&attempts[i]))
			sorted[nsorted++] = &attempts[i];
	}
	sort_attempts(sorted, nsorted);
	for (int i = 0, n = 0; i < nsorted; i += n)
	{
		Attempt **run = sorted + i;

		n = length_of_run(run, nsorted - i);
		if (n < RUN_LEAST)
			continue;
		put_value(&rows, Int64GetDatum(run[0]->seq));
		put_value(&rows, Int64GetDatum(run[n - 1]->seq));
		put_value(&rows, TimestampTzGetDatum(run[0]->started_at));
		put_value(&rows, Int32GetDatum(run[0]->endpoint_id));
		put_value(&rows, Int32GetDatum(run[0]->attempt));
		put_if(&rows, run[0]->status != 0, Int16GetDatum(run[0]->status));
		put_value(&rows, Int16GetDatum(piece));
		put_value(&rows, Int16GetDatum(run[0]->cause));
		put_value(&rows, packed(run, n));
		for (int k = 0; k < n; k++)
			run[k]->in_run = true;
	}
	if (rows.n > 0)
		outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_ATTEMPT_RUNS_0 + piece), 9,
						   &rows);
}

static void
put_time(OutboxRows *rows, float ms)
{
	put_if(rows, ms >= 0, Float4GetDatum(ms));
}

static void
write_rows(int piece)
{
	OutboxRows rows = {0};

	for (int i = 0; i < nattempts; i++)
	{
		Attempt *a = &attempts[i];

		if (a->in_run)
			continue;
		put_value(&rows, Int64GetDatum(a->seq));
		put_value(&rows, TimestampTzGetDatum(a->started_at));
		put_value(&rows, UUIDPGetDatum(&a->event_id));
		put_value(&rows, Int32GetDatum(a->endpoint_id));
		put_value(&rows, Int32GetDatum(a->attempt));
		put_value(&rows, Float4GetDatum(a->duration));
		put_if(&rows, a->status != 0, Int16GetDatum(a->status));
		put_value(&rows, Int16GetDatum(piece));
		put_value(&rows, Int16GetDatum(a->cause));
		put_time(&rows, a->details->times.lookup);
		put_time(&rows, a->details->times.connect);
		put_time(&rows, a->details->times.tls);
		put_time(&rows, a->details->times.first_byte);
		put_text(&rows, a->details->error);
		put_text(&rows, a->details->head);
		put_text(&rows, a->details->body);
	}
	if (rows.n > 0)
		outbox_append_rows(outbox_table_oid(OUTBOX_TABLE_ATTEMPT_LOG_0 + piece), 16,
						   &rows);
}

void
outbox_attempts_write(void)
{
	int piece = (int) pg_atomic_read_u32(&outbox_db->attempts_piece);

	if (nattempts == 0)
		return;
	write_runs(piece);
	OUTBOX_CRASH_POINT("settle.runs");
	write_rows(piece);
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
	nbytes = 0;
	MemoryContextReset(attempt_cxt);
}

bool
outbox_attempts_wait(void)
{
	return nattempts > 0;
}

/* ------------------------------------------------------- runs, for SQL */

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
