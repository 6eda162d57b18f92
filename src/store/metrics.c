/*
 * metrics.c
 *	  Owns the figures of endpoints in outbox.metrics(): the sums of all, and the
 *	  figures of the endpoints that most need attention.
 *
 * Only figures that the workers have published are read, so a scrape costs about a
 * microsecond for each endpoint, and nothing for the events that wait.
 */
#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "base/version.h"
#include "endpoint/endpoint_stats.h"
#include "endpoint/tally.h"
#include "server/shmem.h"
#include "store/series.h"

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
	int64		  states[OUTBOX_ENDPOINT_STATES];
	int64		  unknown; /* endpoints of which nothing was published */
	OutboxWaiting waiting;
} Sums;

static void
put_latency(const OutboxSeries *series, const OutboxStats *s)
{
	if (s->latency_p50_ms < 0)
		return;
	outbox_series_put(series, "latency_seconds", "0.5", s->latency_p50_ms / 1000);
	outbox_series_put(series, "latency_seconds", "0.95", s->latency_p95_ms / 1000);
	outbox_series_put(series, "latency_seconds", "0.99", s->latency_p99_ms / 1000);
}

/*
 * Of an endpoint, classes and reasons that never occurred are left out.  The totals
 * have them all, so that an increase from 0 to 1 is one.
 */
static void
put_endpoint(ReturnSetInfo *rsinfo, const OutboxStats *s, TimestampTz now)
{
	OutboxSeries series = {rsinfo, now, "outbox_endpoint_",
						   Int32GetDatum(s->key.endpoint_id)};

	outbox_series_put(&series, "state", outbox_endpoint_states[s->state], 1);
	outbox_series_put_age(&series, "state_seconds", s->state_since);
	outbox_series_put_waiting(&series, &s->waiting);
	outbox_series_put_age(&series, "last_success_seconds", s->last_success_at);
	put_latency(&series, s);
	for (int c = 0; c <= OUTBOX_COUNT_CANCELLED; c++)
		if (s->counters[c] != 0 || outbox_counter_names[c].label == NULL)
			outbox_series_put(&series, outbox_counter_names[c].metric,
							  outbox_counter_names[c].label, s->counters[c]);
}

static void
put_sums(const OutboxSeries *series, const Sums *sums)
{
	for (size_t i = 0; i < lengthof(outbox_endpoint_states); i++)
		outbox_series_put(series, "endpoints", outbox_endpoint_states[i],
						  sums->states[i]);
	outbox_series_put(series, "endpoints", "unknown", sums->unknown);
	outbox_series_put_waiting(series, &sums->waiting);
}

static void
put_totals(const OutboxSeries *series)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);

	if (db == NULL || !db->totals_known)
		return;
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
		outbox_series_put(series, outbox_counter_names[c].metric,
						  outbox_counter_names[c].label,
						  (double) pg_atomic_read_u64(&db->durable_totals[c]));
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
				  .oldest_pending_at = s->waiting.oldest_pending_at ?
					  s->waiting.oldest_pending_at :
					  DT_NOEND,
				  .dead = s->waiting.dead,
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
	OutboxSeries   all = {rsinfo, GetCurrentTimestamp(), "outbox_", 0};
	Rank		  *ranks = palloc(sizeof(Rank) * (most + 1));
	Sums		   sums = {0};
	int			   n = 0;
	Datum		  *ids;
	int			   nids;
	OutboxStats	   s;

	InitMaterializedSRF(fcinfo, 0);
	outbox_expect_columns(fcinfo, rsinfo->setDesc, OUTBOX_SERIES_COLUMNS);
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
		sums.states[s.state]++;
		outbox_waiting_add(&sums.waiting, &s.waiting);
		r = rank_of(&s);
		if (most > 0)
			insert(ranks, &n, most, &r);
	}
	put_sums(&all, &sums);
	put_totals(&all);
	for (int i = 0; i < n; i++)
		if (outbox_stats_fetch(MyDatabaseId, ranks[i].endpoint_id, &s))
			put_endpoint(rsinfo, &s, all.now);
	return (Datum) 0;
}
