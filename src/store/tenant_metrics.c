/*
 * tenant_metrics.c
 *	  Owns the figures of tenants in outbox.metrics(): of the tenants that get most or fail
 *	  most, and of all others together.
 *
 * Only figures that the workers have published are read, as in metrics.c.  All are gauges:
 * a sum over endpoints goes down when one is dropped, and so does that of the others when a
 * tenant leaves them.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
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
#include "server/shmem.h"

#define TENANT_COLUMNS 4
#define MOST_TENANTS 1000

typedef struct Tenant
{
	Datum		name; /* 0: all others */
	bool		shown;
	double		delivered; /* a second, over the last minute */
	double		failed;
	int64		pending;
	int64		processing;
	int64		retrying;
	int64		blocked;
	int64		dead;			   /* -1: not known, as the two before it */
	TimestampTz oldest_pending_at; /* 0: nothing is pending */
} Tenant;

static void
put(ReturnSetInfo *rsinfo, const Tenant *t, const char *metric, const char *label,
	double value)
{
	Datum values[TENANT_COLUMNS] = {t->name, CStringGetTextDatum(metric),
									label ? CStringGetTextDatum(label) : (Datum) 0,
									Float8GetDatum(value)};
	bool  nulls[TENANT_COLUMNS] = {t->name == (Datum) 0, false, label == NULL, false};

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_tenant(ReturnSetInfo *rsinfo, const Tenant *t, TimestampTz now)
{
	static const char *const metric = "outbox_tenant_deliveries";

	put(rsinfo, t, "outbox_tenant_delivered_per_second", NULL, t->delivered);
	put(rsinfo, t, "outbox_tenant_failed_attempts_per_second", NULL, t->failed);
	put(rsinfo, t, metric, "pending", t->pending);
	put(rsinfo, t, metric, "processing", t->processing);
	if (t->dead >= 0)
	{
		put(rsinfo, t, metric, "retrying", t->retrying);
		put(rsinfo, t, metric, "blocked", t->blocked);
		put(rsinfo, t, metric, "dead", t->dead);
	}
	if (t->oldest_pending_at != 0)
		put(rsinfo, t, "outbox_tenant_oldest_pending_seconds", NULL,
			Max(now - t->oldest_pending_at, 0) / (double) USECS_PER_SEC);
}

static void
add(Tenant *to, const Tenant *t)
{
	bool known = to->dead >= 0 && t->dead >= 0;

	to->delivered += t->delivered;
	to->failed += t->failed;
	to->pending += t->pending;
	to->processing += t->processing;
	to->retrying += t->retrying;
	to->blocked += t->blocked;
	to->dead = known ? to->dead + t->dead : -1;
	if (t->oldest_pending_at != 0 &&
		(to->oldest_pending_at == 0 || t->oldest_pending_at < to->oldest_pending_at))
		to->oldest_pending_at = t->oldest_pending_at;
}

static void
add_endpoint(Tenant *to, int32 id, TimestampTz now)
{
	OutboxStats s;
	Tenant		t;

	if (!outbox_stats_fetch(MyDatabaseId, id, &s))
		return;
	t = (Tenant){.delivered = outbox_endpoint_stats_rate(s.recent, s.recent_second, now),
				 .failed = outbox_endpoint_stats_rate(s.recent_failed, s.recent_second,
													  now),
				 .pending = s.pending,
				 .processing = s.processing,
				 .retrying = s.retrying,
				 .blocked = s.blocked,
				 .dead = s.dead,
				 .oldest_pending_at = s.oldest_pending_at};
	add(to, &t);
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

/*
 * tenant_series(ids int[], tenants text[], top int): rows of outbox.metrics().  The tenant
 * of ids[n] is tenants[n], and the endpoints of one tenant are beside one another.
 */
OUTBOX_FUNCTION(outbox_tenant_series_1_0, 3)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			   most = Min(Max(PG_GETARG_INT32(2), 0), MOST_TENANTS);
	TimestampTz	   now = GetCurrentTimestamp();
	Tenant		   others = {0};
	Tenant		  *all;
	Tenant		 **order;
	Datum		  *ids;
	Datum		  *names;
	int			   nids;
	int			   nnames;
	int			   n = 0;

	InitMaterializedSRF(fcinfo, 0);
	outbox_expect_columns(fcinfo, rsinfo->setDesc, TENANT_COLUMNS);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT4OID, 4, true, TYPALIGN_INT, &ids,
					  NULL, &nids);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false, TYPALIGN_INT, &names,
					  NULL, &nnames);
	nids = Min(nids, nnames);
	all = palloc0(sizeof(*all) * Max(nids, 1));
	order = palloc(sizeof(*order) * Max(nids, 1));
	for (int i = 0; i < nids; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i == 0 ||
			!DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, names[i],
												  all[n - 1].name)))
		{
			order[n] = &all[n];
			all[n++].name = names[i];
		}
		add_endpoint(&all[n - 1], DatumGetInt32(ids[i]), now);
	}
	choose(order, n, most);
	for (int i = 0; i < n; i++)
		if (all[i].shown)
			put_tenant(rsinfo, &all[i], now);
		else
			add(&others, &all[i]);
	put_tenant(rsinfo, &others, now);
	return (Datum) 0;
}
