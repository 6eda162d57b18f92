/*
 * tenant.c
 *	  Owns what the endpoints of one tenant have together: limits, and requests in
 *	  flight.
 */
#include "base/outbox.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "endpoint/tenant.h"

typedef struct NamedTenant
{
	const char	 *name;
	uint32		  hash;
	char		  status;
	OutboxTenant *tenant;
} NamedTenant;

#define SH_PREFIX tenants
#define SH_ELEMENT_TYPE NamedTenant
#define SH_KEY name
#include "base/string_hash.h"

static tenants_hash *tenants;

OutboxTenant *
outbox_tenant_join(const char *name)
{
	NamedTenant *named;
	bool		 found;

	if (tenants == NULL)
		tenants = tenants_create(TopMemoryContext, 64, NULL);
	named = tenants_lookup(tenants, name);
	if (named == NULL)
	{
		size_t		  len = strlen(name);
		OutboxTenant *t = MemoryContextAllocZero(TopMemoryContext,
												 offsetof(OutboxTenant, name) + len + 1);

		memcpy(t->name, name, len);
		dlist_init(&t->waiting);
		named = tenants_insert(tenants, t->name, &found);
		named->tenant = t;
	}
	named->tenant->nendpoints++;
	return named->tenant;
}

void
outbox_tenant_leave(OutboxTenant *t)
{
	if (--t->nendpoints > 0)
		return;
	tenants_delete(tenants, t->name);
	if (t->pace)
		pfree(t->pace);
	pfree(t);
}

/* Most tenants have no limits. */
void
outbox_tenant_set_limits(OutboxTenant *t, int max_in_flight, double rate_limit)
{
	if (t->pace == NULL && max_in_flight == 0 && rate_limit == 0)
		return;
	if (t->pace == NULL)
		t->pace = MemoryContextAllocZero(TopMemoryContext, sizeof(OutboxPace));
	t->pace->limits.max_in_flight = max_in_flight;
	t->pace->limits.rate_limit = rate_limit;
}

bool
outbox_tenant_is_limited(const OutboxTenant *t)
{
	return t->pace &&
		(t->pace->limits.max_in_flight > 0 || t->pace->limits.rate_limit > 0);
}

TimestampTz
outbox_tenant_token_at(OutboxTenant *t, TimestampTz now)
{
	return t->pace ? outbox_pace_token_at(t->pace, now) : now;
}

bool
outbox_tenant_allows(OutboxTenant *t, TimestampTz now)
{
	return !outbox_tenant_is_limited(t) ||
		((t->pace->limits.max_in_flight == 0 ||
		  t->in_flight < t->pace->limits.max_in_flight) &&
		 outbox_pace_token_at(t->pace, now) <= now);
}

void
outbox_tenant_begin(OutboxTenant *t, bool only)
{
	t->in_flight++;
	t->nsending += only;
	if (t->pace)
		outbox_pace_take_token(t->pace);
}

void
outbox_tenant_end(OutboxTenant *t, bool only)
{
	t->in_flight--;
	t->nsending -= only;
}
