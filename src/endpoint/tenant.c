/*
 * tenant.c
 *	  Owns the things that the endpoints of one tenant share: limits, requests
 *	  in flight, and the list of them.
 */
#include "base/outbox.h"

#include "common/hashfn.h"

#include "base/pieces.h"
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

static OutboxPieces	 pieces = {.name = "tenants"};
static tenants_hash *tenants;
static int			 nlimited; /* tenants with a limit of what is kept for them */

OutboxTenant *
outbox_tenant_find(const char *name)
{
	const NamedTenant *named = tenants ? tenants_lookup(tenants, name) : NULL;

	return named ? named->tenant : NULL;
}

uint64
outbox_tenant_number(const OutboxTenant *t)
{
	if (t == NULL)
		return 0;
	return hash_bytes_extended((const unsigned char *) t->name, (int) strlen(t->name),
							   0) |
		1;
}

static OutboxTenant *
make_tenant(const char *name)
{
	size_t		  len = strlen(name);
	OutboxTenant *t;
	bool		  found;

	if (tenants == NULL)
		tenants = tenants_create(outbox_pieces_context(&pieces), 64, NULL);
	t = outbox_piece_alloc(&pieces, offsetof(OutboxTenant, name) + len + 1);
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
	nlimited -= outbox_tenant_is_limited(t);
	tenants_delete(tenants, t->name);
	if (t->pace)
		pfree(t->pace);
	if (t->kept)
		pfree(t->kept);
	pfree(t);
}

/* Most tenants have no limits. */
void
outbox_tenant_set_limits(OutboxTenant *t, int max_in_flight, double rate_limit,
						 OutboxKeptMost kept)
{
	nlimited -= outbox_tenant_is_limited(t);
	if (t->kept == NULL && outbox_kept_most_is_set(kept))
		t->kept = outbox_piece_alloc(&pieces, sizeof(OutboxKeptLimit));
	if (t->kept)
		t->kept->most = kept;
	nlimited += outbox_tenant_is_limited(t);
	if (t->pace == NULL && max_in_flight == 0 && rate_limit == 0)
		return;
	if (t->pace == NULL)
		t->pace = outbox_piece_alloc(&pieces, sizeof(OutboxPace));
	t->pace->limits.max_in_flight = max_in_flight;
	t->pace->limits.rate_limit = rate_limit;
}

bool
outbox_tenants_are_limited(void)
{
	return nlimited > 0;
}

TimestampTz
outbox_tenant_allows_at(OutboxTenant *t, TimestampTz now)
{
	int most = t->pace->limits.max_in_flight;

	if (most > 0 && t->flow.in_flight >= most)
		return DT_NOEND;
	return outbox_pace_token_at(t->pace, now);
}
