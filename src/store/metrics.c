/*
 * metrics.c
 *	  Owns the figures of endpoints in outbox.metrics(): the sums of all, and the
 *	  figures of the endpoints that most need attention.
 *
 * Only figures that the workers have published are read, so a scrape costs about a
 * microsecond for each endpoint, and nothing for the events that wait.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "base/version.h"
#include "endpoint/endpoint_stats.h"
#include "endpoint/tally.h"
#include "server/shmem.h"

#define METRIC_COLUMNS 4
#define MOST_SERIES 10000

/* The rank of an endpoint among all that need attention. */
typedef struct Rank
{
	bool		troubled; /* true if it backs off, is held or is disabled */
	TimestampTz oldest_pending_at;
	int64		dead;
	int64		delivered;
	int32		endpoint_id;
} Rank;

typedef struct Sums
{
	int64		states[OUTBOX_ENDPOINT_STATES];
	int64		unknown; /* endpoints of which nothing was published */
	int64		pending;
	int64		processing;
	int64		retrying;
	int64		blocked;
	int64		dead;			   /* -1: not known, as the two before it */
	TimestampTz oldest_pending_at; /* 0: nothing is pending */
} Sums;

/* 'endpoint_id' 0: of all endpoints.  'label' NULL: none. */
static void
put(ReturnSetInfo *rsinfo, int32 endpoint_id, const char *metric, const char *label,
	double value)
{
	Datum values[METRIC_COLUMNS];
	bool  nulls[METRIC_COLUMNS] = {0};

	nulls[0] = endpoint_id == 0;
	values[0] = Int32GetDatum(endpoint_id);
	values[1] = CStringGetTextDatum(metric);
	nulls[2] = label == NULL;
	if (label)
		values[2] = CStringGetTextDatum(label);
	values[3] = Float8GetDatum(value);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* 0: not known.  Then there is no row. */
static void
put_age(ReturnSetInfo *rsinfo, int32 endpoint_id, const char *metric, TimestampTz at,
		TimestampTz now)
{
	if (at != 0)
		put(rsinfo, endpoint_id, metric, NULL, Max(now - at, 0) / (double) USECS_PER_SEC);
}

/* -1: rows are being counted.  Then there is no series of them. */
static void
put_waiting(ReturnSetInfo *rsinfo, int32 endpoint_id, const char *metric, int64 pending,
			int64 processing, int64 retrying, int64 blocked, int64 dead)
{
	put(rsinfo, endpoint_id, metric, "pending", pending);
	put(rsinfo, endpoint_id, metric, "processing", processing);
	if (dead < 0)
		return;
	put(rsinfo, endpoint_id, metric, "retrying", retrying);
	put(rsinfo, endpoint_id, metric, "blocked", blocked);
	put(rsinfo, endpoint_id, metric, "dead", dead);
}

static void
put_latency(ReturnSetInfo *rsinfo, const OutboxStats *s)
{
	const char *metric = "outbox_endpoint_latency_seconds";

	if (s->latency_p50_ms < 0)
		return;
	put(rsinfo, s->key.endpoint_id, metric, "0.5", s->latency_p50_ms / 1000);
	put(rsinfo, s->key.endpoint_id, metric, "0.95", s->latency_p95_ms / 1000);
	put(rsinfo, s->key.endpoint_id, metric, "0.99", s->latency_p99_ms / 1000);
}

/*
 * Of an endpoint, classes and reasons that never occurred are left out.  The totals
 * have them all, so that an increase from 0 to 1 is one.
 */
static void
put_endpoint(ReturnSetInfo *rsinfo, const OutboxStats *s, TimestampTz now)
{
	int32 id = s->key.endpoint_id;

	put(rsinfo, id, "outbox_endpoint_state", outbox_endpoint_states[s->state], 1);
	put_age(rsinfo, id, "outbox_endpoint_state_seconds", s->state_since, now);
	put_waiting(rsinfo, id, "outbox_endpoint_deliveries", s->pending, s->processing,
				s->retrying, s->blocked, s->dead);
	put_age(rsinfo, id, "outbox_endpoint_oldest_pending_seconds", s->oldest_pending_at,
			now);
	put_age(rsinfo, id, "outbox_endpoint_last_success_seconds", s->last_success_at, now);
	put_latency(rsinfo, s);
	for (int c = 0; c <= OUTBOX_COUNT_CANCELLED; c++)
		if (s->counters[c] != 0 || outbox_counter_names[c].label == NULL)
			put(rsinfo, id,
				psprintf("outbox_endpoint_%s", outbox_counter_names[c].metric),
				outbox_counter_names[c].label, s->counters[c]);
}

static void
put_sums(ReturnSetInfo *rsinfo, const Sums *sums, TimestampTz now)
{
	for (size_t i = 0; i < lengthof(outbox_endpoint_states); i++)
		put(rsinfo, 0, "outbox_endpoints", outbox_endpoint_states[i], sums->states[i]);
	put(rsinfo, 0, "outbox_endpoints", "unknown", sums->unknown);
	put_waiting(rsinfo, 0, "outbox_deliveries", sums->pending, sums->processing,
				sums->retrying, sums->blocked, sums->dead);
	put_age(rsinfo, 0, "outbox_oldest_pending_seconds", sums->oldest_pending_at, now);
}

static void
put_totals(ReturnSetInfo *rsinfo)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);

	if (db == NULL || !db->totals_known)
		return;
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
		put(rsinfo, 0, psprintf("outbox_%s", outbox_counter_names[c].metric),
			outbox_counter_names[c].label,
			(double) pg_atomic_read_u64(&db->durable_totals[c]));
}

static void
add(Sums *sums, const OutboxStats *s)
{
	sums->states[s->state]++;
	sums->pending += s->pending;
	sums->processing += s->processing;
	if (s->dead < 0 || sums->dead < 0)
		sums->dead = -1;
	else
	{
		sums->retrying += s->retrying;
		sums->blocked += s->blocked;
		sums->dead += s->dead;
	}
	if (s->oldest_pending_at != 0 &&
		(sums->oldest_pending_at == 0 || s->oldest_pending_at < sums->oldest_pending_at))
		sums->oldest_pending_at = s->oldest_pending_at;
}

/* True if 'a' needs attention more than 'b'. */
static bool
before(const Rank *a, const Rank *b)
{
	if (a->troubled != b->troubled)
		return a->troubled;
	if (a->oldest_pending_at != b->oldest_pending_at)
		return a->oldest_pending_at < b->oldest_pending_at;
	if (a->dead != b->dead)
		return a->dead > b->dead;
	if (a->delivered != b->delivered)
		return a->delivered > b->delivered;
	return a->endpoint_id < b->endpoint_id;
}

static Rank
rank_of(const OutboxStats *s)
{
	return (Rank){.troubled = s->state == OUTBOX_ENDPOINT_BACKING_OFF ||
					  s->state == OUTBOX_ENDPOINT_HELD ||
					  s->state == OUTBOX_ENDPOINT_DISABLED,
				  .oldest_pending_at = s->oldest_pending_at ? s->oldest_pending_at :
															  DT_NOEND,
				  .dead = s->dead,
				  .delivered = s->delivered,
				  .endpoint_id = s->key.endpoint_id};
}

/* Keeps the first 'most' ones, in their order. */
static void
insert(Rank *ranks, int *n, int most, const Rank *r)
{
	int low = 0;
	int high = *n;

	while (low < high)
	{
		int middle = (low + high) / 2;

		if (before(r, &ranks[middle]))
			high = middle;
		else
			low = middle + 1;
	}
	if (low == most)
		return;
	if (*n < most)
		(*n)++;
	memmove(&ranks[low + 1], &ranks[low], sizeof(Rank) * (*n - 1 - low));
	ranks[low] = *r;
}

/*
 * endpoint_series(ids int[], top int): rows of outbox.metrics(), of all these endpoints
 * summed, of the 'top' endpoints that need attention most, and of the totals of the
 * database.
 */
OUTBOX_FUNCTION(outbox_endpoint_series_1_0, 2)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			   most = Min(Max(PG_GETARG_INT32(1), 0), MOST_SERIES);
	TimestampTz	   now = GetCurrentTimestamp();
	Rank		  *ranks = palloc(sizeof(Rank) * (most + 1));
	Sums		   sums = {0};
	int			   n = 0;
	Datum		  *ids;
	int			   nids;
	OutboxStats	   s;

	InitMaterializedSRF(fcinfo, 0);
	outbox_expect_columns(fcinfo, rsinfo->setDesc, METRIC_COLUMNS);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT4OID, 4, true, TYPALIGN_INT, &ids,
					  NULL, &nids);
	for (int i = 0; i < nids; i++)
	{
		Rank r;

		CHECK_FOR_INTERRUPTS();
		if (!outbox_stats_fetch(MyDatabaseId, DatumGetInt32(ids[i]), &s))
		{
			sums.unknown++;
			continue;
		}
		add(&sums, &s);
		r = rank_of(&s);
		if (most > 0)
			insert(ranks, &n, most, &r);
	}
	put_sums(rsinfo, &sums, now);
	put_totals(rsinfo);
	for (int i = 0; i < n; i++)
		if (outbox_stats_fetch(MyDatabaseId, ranks[i].endpoint_id, &s))
			put_endpoint(rsinfo, &s, now);
	return (Datum) 0;
}
