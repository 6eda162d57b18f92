/*
 * tenant_metrics.c
 *	  Owns the figures of tenants in outbox.metrics(): of the tenants that get most or fail
 *	  most, and of all others together.
 *
 * Only figures that the workers have published are read, as in metrics.c.  All are gauges:
 * a sum over endpoints goes down when one is dropped, and so does that of the others when a
 * tenant leaves them.
 */
#include "base/outbox.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "base/version.h"
#include "endpoint/endpoint_stats.h"
#include "store/series.h"

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
put_tenant(ReturnSetInfo *rsinfo, const Tenant *t, TimestampTz now)
{
	OutboxSeries series = {rsinfo, now, "outbox_tenant_", t->name};

	outbox_series_put(&series, "delivered_per_second", NULL, t->delivered);
	outbox_series_put(&series, "failed_attempts_per_second", NULL, t->failed);
	outbox_series_put_waiting(&series, &t->waiting);
}

static void
add(Tenant *to, double delivered, double failed, const OutboxWaiting *waiting)
{
	to->delivered += delivered;
	to->failed += failed;
	outbox_waiting_add(&to->waiting, waiting);
}

static void
add_endpoint(Tenant *to, int32 id, TimestampTz now)
{
	OutboxStats s;

	if (outbox_stats_fetch(MyDatabaseId, id, &s))
		add(to, outbox_endpoint_stats_rate(s.recent, s.recent_second, now),
			outbox_endpoint_stats_rate(s.recent_failed, s.recent_second, now),
			&s.waiting);
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
	outbox_expect_columns(fcinfo, rsinfo->setDesc, OUTBOX_SERIES_COLUMNS);
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
			add(&others, all[i].delivered, all[i].failed, &all[i].waiting);
	put_tenant(rsinfo, &others, now);
	return (Datum) 0;
}
