/*
 * tenant.c
 *	  Owns what the endpoints of one tenant have together: limits, requests in flight,
 *	  and the list of them.
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

static MemoryContext tenants_cxt;
static tenants_hash *tenants;

OutboxTenant *
outbox_tenant_find(const char *name)
{
	const NamedTenant *named = tenants ? tenants_lookup(tenants, name) : NULL;

	return named ? named->tenant : NULL;
}

static OutboxTenant *
make_tenant(const char *name)
{
	size_t		  len = strlen(name);
	OutboxTenant *t;
	bool		  found;

	if (tenants == NULL)
	{
		tenants_cxt = AllocSetContextCreate(TopMemoryContext, "outbox tenants", 0,
											8 * 1024, 256 * 1024);
		tenants = tenants_create(tenants_cxt, 64, NULL);
	}
	t = MemoryContextAllocZero(tenants_cxt, offsetof(OutboxTenant, name) + len + 1);
	memcpy(t->name, name, len);
	dlist_init(&t->group.members);
	tenants_insert(tenants, t->name, &found)->tenant = t;
	return t;
}

OutboxTenant *
outbox_tenant_join(const char *name)
{
	OutboxTenant *t = outbox_tenant_find(name);

	if (t == NULL)
		t = make_tenant(name);
	t->nendpoints++;
	return t;
}

void
outbox_tenant_leave(OutboxTenant *t)
{
	if (--t->nendpoints > 0)
		return;
	tenants_delete(tenants, t->name);
	if (t->limits)
		pfree(t->limits);
	pfree(t);
}

/* Most tenants have no limits. */
void
outbox_tenant_set_limits(OutboxTenant *t, int max_in_flight, double rate_limit)
{
	if (t->limits == NULL && max_in_flight == 0 && rate_limit == 0)
		return;
	if (t->limits == NULL)
	{
		t->limits = MemoryContextAllocZero(tenants_cxt, sizeof(OutboxTenantLimits));
		dlist_init(&t->limits->waiting);
	}
	t->limits->pace.limits.max_in_flight = max_in_flight;
	t->limits->pace.limits.rate_limit = rate_limit;
}

bool
outbox_tenant_is_limited(const OutboxTenant *t)
{
	return t->limits &&
		(t->limits->pace.limits.max_in_flight > 0 ||
		 t->limits->pace.limits.rate_limit > 0);
}

TimestampTz
outbox_tenant_token_at(OutboxTenant *t, TimestampTz now)
{
	return t->limits ? outbox_pace_token_at(&t->limits->pace, now) : now;
}

bool
outbox_tenant_allows(OutboxTenant *t, TimestampTz now)
{
	return !outbox_tenant_is_limited(t) ||
		((t->limits->pace.limits.max_in_flight == 0 ||
		  t->in_flight < t->limits->pace.limits.max_in_flight) &&
		 outbox_pace_token_at(&t->limits->pace, now) <= now);
}

void
outbox_tenant_begin(OutboxTenant *t, bool only)
{
	t->in_flight++;
	t->nsending += only;
	if (t->limits)
		outbox_pace_take_token(&t->limits->pace);
}

void
outbox_tenant_end(OutboxTenant *t, bool only)
{
	t->in_flight--;
	t->nsending -= only;
}
