/*
 * metrics.c
 *	  Owns the figures of endpoints and tenants in outbox.metrics(): the sums of all, and
 *	  the figures of the endpoints that most need attention, and of the tenants that get
 *	  most or fail most.
 *
 * Only figures that the workers have published are read, so a scrape costs about a
 * microsecond for each endpoint, and nothing for the events that wait.
 */
#include "base/outbox.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "endpoint/endpoint_stats.h"
#include "endpoint/tally.h"
#include "server/shmem.h"

/* Whose figures are put. */
typedef struct Series
{
	FunctionCallInfo fcinfo;
	OutboxRows		*row;
	TimestampTz		 now;
	const char		*prefix;   /* of all metrics */
	Datum			 endpoint; /* its id (0: NULL) */
	Datum			 tenant;   /* its name (0: NULL).  Both are 0: all, or all others */
} Series;

/* 'label' NULL: none. */
static void
put(const Series *series, const char *metric, const char *label, double value)
{
	put_if(series->row, series->endpoint != 0, series->endpoint);
	put_if(series->row, series->tenant != 0, series->tenant);
	put_text(series->row, psprintf("%s%s", series->prefix, metric));
	put_text(series->row, label);
	put_value(series->row, Float8GetDatum(value));
	outbox_add_row(series->fcinfo, series->row);
}

/* Seconds since 'at'.  0: not known, so there is no row. */
static void
put_age(const Series *series, const char *metric, TimestampTz at)
{
	if (at != 0)
		put(series, metric, NULL, Max(series->now - at, 0) / (double) USECS_PER_SEC);
}

/* Rows that are being counted have no series. */
static void
put_waiting(const Series *series, const OutboxWaiting *waiting)
{
	put(series, "deliveries", "pending", waiting->pending);
	put(series, "deliveries", "processing", waiting->processing);
	if (waiting->dead >= 0)
	{
		put(series, "deliveries", "retrying", waiting->retrying);
		put(series, "deliveries", "blocked", waiting->blocked);
		put(series, "deliveries", "dead", waiting->dead);
	}
	put_age(series, "oldest_pending_seconds", waiting->oldest_pending_at);
}

static void
add_waiting(OutboxWaiting *to, const OutboxWaiting *waiting)
{
	bool known = to->dead >= 0 && waiting->dead >= 0;

	to->pending += waiting->pending;
	to->processing += waiting->processing;
	to->retrying += waiting->retrying;
	to->blocked += waiting->blocked;
	to->dead = known ? to->dead + waiting->dead : -1;
	if (waiting->oldest_pending_at != 0 &&
		(to->oldest_pending_at == 0 ||
		 waiting->oldest_pending_at < to->oldest_pending_at))
		to->oldest_pending_at = waiting->oldest_pending_at;
}

/* ----------------------------------------------------------- endpoints */

#define MOST_SERIES 10000

/* The rank of an endpoint among all that need attention. */
typedef struct Rank
{
	int			group; /* 0: in trouble, 1: active, 2: stopped */
	TimestampTz oldest_pending_at;
	int64		dead;
	int64		delivered;
	int32		endpoint_id;
} Rank;

typedef struct Sums
{
	int64		  states[OUTBOX_ENDPOINT_STATES];
	int64		  unknown; /* endpoints of which nothing was published */
	int64		  stopped; /* deliveries that wait where nothing is sent */
	OutboxWaiting waiting; /* without these */
} Sums;

/* A backlog where nothing is sent says nothing about the deliveries that can be sent. */
static void
add_endpoint(Sums *sums, const OutboxStats *s)
{
	OutboxWaiting waiting = s->waiting;

	sums->states[s->state]++;
	if (s->state != OUTBOX_ENDPOINT_ACTIVE && s->state != OUTBOX_ENDPOINT_BACKING_OFF)
	{
		sums->stopped += waiting.pending + waiting.retrying + waiting.blocked;
		waiting.pending = waiting.retrying = waiting.blocked = 0;
		waiting.oldest_pending_at = 0;
	}
	add_waiting(&sums->waiting, &waiting);
}

static void
put_latency(const Series *series, const OutboxStats *s)
{
	if (s->latency_p50_ms < 0)
		return;
	put(series, "latency_seconds", "0.5", s->latency_p50_ms / 1000);
	put(series, "latency_seconds", "0.95", s->latency_p95_ms / 1000);
	put(series, "latency_seconds", "0.99", s->latency_p99_ms / 1000);
}

/*
 * Of an endpoint, classes and reasons that never occurred are left out.  The totals
 * have them all, so that an increase from 0 to 1 is one.
 */
static void
put_endpoint(Series series, const OutboxStats *s)
{
	series.prefix = "outbox_endpoint_";
	series.endpoint = Int32GetDatum(s->key.endpoint_id);

	put(&series, "state", outbox_endpoint_states[s->state], 1);
	put_age(&series, "state_seconds", s->state_since);
	put_waiting(&series, &s->waiting);
	put_age(&series, "last_success_seconds", s->last_success_at);
	put_latency(&series, s);
	for (int c = 0; c <= OUTBOX_COUNT_CANCELLED; c++)
		if (s->counters[c] != 0 || outbox_counter_names[c].label == NULL)
			put(&series, outbox_counter_names[c].metric, outbox_counter_names[c].label,
				s->counters[c]);
}

static void
put_sums(const Series *series, const Sums *sums)
{
	for (size_t i = 0; i < lengthof(outbox_endpoint_states); i++)
		put(series, "endpoints", outbox_endpoint_states[i], sums->states[i]);
	put(series, "endpoints", "unknown", sums->unknown);
	put_waiting(series, &sums->waiting);
	if (sums->waiting.dead >= 0)
		put(series, "deliveries", "stopped", sums->stopped);
}

static void
put_totals(const Series *series)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);

	if (db == NULL || !db->totals_known)
		return;
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
		put(series, outbox_counter_names[c].metric, outbox_counter_names[c].label,
			(double) pg_atomic_read_u64(&db->durable_totals[c]));
}

/* The ones that need attention most come first. */
static int
by_need(const void *x, const void *y)
{
	const Rank *a = x;
	const Rank *b = y;

	if (a->group != b->group)
		return a->group < b->group ? -1 : 1;
	if (a->oldest_pending_at != b->oldest_pending_at)
		return a->oldest_pending_at < b->oldest_pending_at ? -1 : 1;
	if (a->dead != b->dead)
		return a->dead > b->dead ? -1 : 1;
	if (a->delivered != b->delivered)
		return a->delivered > b->delivered ? -1 : 1;
	return a->endpoint_id < b->endpoint_id ? -1 : 1;
}

/* A disabled one is in trouble for a day.  Abandoned ones would take all places. */
static int
group_of(const OutboxStats *s, TimestampTz now)
{
	if (s->state == OUTBOX_ENDPOINT_BACKING_OFF || s->state == OUTBOX_ENDPOINT_HELD ||
		(s->state == OUTBOX_ENDPOINT_DISABLED && s->state_since > now - USECS_PER_DAY))
		return 0;
	return s->state == OUTBOX_ENDPOINT_ACTIVE ? 1 : 2;
}

static Rank
rank_of(const OutboxStats *s, TimestampTz now)
{
	return (Rank){.group = group_of(s, now),
				  .oldest_pending_at = s->waiting.oldest_pending_at ?
					  s->waiting.oldest_pending_at :
					  DT_NOEND,
				  .dead = s->waiting.dead,
				  .delivered = s->delivered,
				  .endpoint_id = s->key.endpoint_id};
}

/* ------------------------------------------------------------- tenants */

/*
 * All of them are gauges: a sum over endpoints goes down when one is dropped, and so does that
 * of the others when a tenant leaves them.
 */
#define MOST_TENANTS 1000

typedef struct Tenant
{
	Datum		  name; /* 0: all others */
	bool		  shown;
	double		  delivered; /* a second, over the last minute */
	double		  failed;
	OutboxWaiting waiting;
} Tenant;

static void
put_tenant(Series series, const Tenant *t)
{
	series.prefix = "outbox_tenant_";
	series.tenant = t->name;

	put(&series, "delivered_per_second", NULL, t->delivered);
	put(&series, "failed_attempts_per_second", NULL, t->failed);
	put_waiting(&series, &t->waiting);
}

static void
add_figures(Tenant *to, double delivered, double failed, const OutboxWaiting *waiting)
{
	to->delivered += delivered;
	to->failed += failed;
	add_waiting(&to->waiting, waiting);
}

/*
 * The order of the rate of failures (true), or of deliveries.  Equal ones come in the order of
 * the names, which is that of the array.
 */
static int
by_rate(const void *a, const void *b, void *failures)
{
	const Tenant *x = *(Tenant *const *) a;
	const Tenant *y = *(Tenant *const *) b;
	double		  p = *(bool *) failures ? x->failed : x->delivered;
	double		  q = *(bool *) failures ? y->failed : y->delivered;

	if (p != q)
		return p > q ? -1 : 1;
	return x < y ? -1 : 1;
}

/* The first 'most' of each order are shown, and of the failing ones only if any failed. */
static void
choose(Tenant **tenants, int n, int most)
{
	bool failures = true;

	qsort_arg(tenants, n, sizeof(*tenants), by_rate, &failures);
	for (int i = 0; i < Min(n, most) && tenants[i]->failed > 0; i++)
		tenants[i]->shown = true;
	failures = false;
	qsort_arg(tenants, n, sizeof(*tenants), by_rate, &failures);
	for (int i = 0; i < Min(n, most); i++)
		tenants[i]->shown = true;
}

static void
put_tenants(const Series *all, Tenant *tenants, int n, int most)
{
	Tenant **order = palloc(sizeof(*order) * n);
	Tenant	 others = {0};

	for (int i = 0; i < n; i++)
		order[i] = &tenants[i];
	choose(order, n, most);
	for (int i = 0; i < n; i++)
	{
		const Tenant *t = &tenants[i];

		if (t->shown)
			put_tenant(*all, t);
		else
			add_figures(&others, t->delivered, t->failed, &t->waiting);
	}
	put_tenant(*all, &others);
}

/* ------------------------------------------------------------- the function */

/*
 * metric_series(ids int[], tenants text[], top int, top_tenants int): rows of
 * outbox.metrics(), of all these endpoints summed, of the 'top' endpoints that need attention
 * most, of the totals of the database, and of tenants.  The tenant of ids[n] is tenants[n]
 * (NULL: none that counts), and the endpoints of one tenant are beside one another.
 */
OUTBOX_FUNCTION(outbox_metric_series_1_0, 4)
{
	int			most = Min(Max(PG_GETARG_INT32(2), 0), MOST_SERIES);
	OutboxRows	row = {0};
	Series		all = {fcinfo, &row, GetCurrentTimestamp(), "outbox_", 0, 0};
	Rank	   *ranks;
	Sums		sums = {0};
	Tenant	   *tenants;
	int			n = 0;
	int			ntenants = 0;
	Datum	   *ids;
	Datum	   *names;
	bool	   *without;
	int			nids;
	int			nnames;
	OutboxStats s;

	InitMaterializedSRF(fcinfo, 0);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT4OID, 4, true, TYPALIGN_INT, &ids,
					  NULL, &nids);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false, TYPALIGN_INT, &names,
					  &without, &nnames);
	nids = Min(nids, nnames);
	ranks = palloc(sizeof(Rank) * Max(nids, 1));
	tenants = palloc0(sizeof(*tenants) * Max(nids, 1));
	for (int i = 0; i < nids; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!without[i] &&
			(ntenants == 0 ||
			 !DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, names[i],
												   tenants[ntenants - 1].name))))
			tenants[ntenants++].name = names[i];
		if (!outbox_stats_fetch(MyDatabaseId, DatumGetInt32(ids[i]), &s))
		{
			sums.unknown++;
			continue;
		}
		add_endpoint(&sums, &s);
		ranks[n++] = rank_of(&s, all.now);
		if (!without[i])
			add_figures(&tenants[ntenants - 1],
						outbox_endpoint_stats_rate(s.recent, s.recent_second, all.now),
						outbox_endpoint_stats_rate(s.recent_failed, s.recent_second,
												   all.now),
						&s.waiting);
	}
	put_sums(&all, &sums);
	put_totals(&all);
	qsort(ranks, n, sizeof(Rank), by_need);
	for (int i = 0; i < Min(n, most); i++)
		if (outbox_stats_fetch(MyDatabaseId, ranks[i].endpoint_id, &s))
			put_endpoint(all, &s);
	if (ntenants > 0)
		put_tenants(&all, tenants, ntenants,
					Min(Max(PG_GETARG_INT32(3), 0), MOST_TENANTS));
	return (Datum) 0;
}
