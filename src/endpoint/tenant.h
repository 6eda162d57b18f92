/*
 * tenant.h
 *	  What the endpoints of one tenant have together.
 */
#ifndef OUTBOX_TENANT_H
#define OUTBOX_TENANT_H

#include "lib/ilist.h"
#include "endpoint/pace.h"

/* Endpoints of the database that get the same events, by tenant (subscribers.c). */
typedef struct OutboxGroup
{
	uint64	   changed_at; /* the number of changes when one came, went or changed */
	dlist_head members;	   /* OutboxSubscription */
} OutboxGroup;

typedef struct OutboxTenantLimits
{
	OutboxPace pace;	/* max_in_flight (0: no limit) and rate_limit for all endpoints */
	dlist_head waiting; /* endpoints that these limits keep from sending */
} OutboxTenantLimits;

typedef struct OutboxTenant
{
	int					nendpoints; /* that the worker knows */
	int					nsending;	/* of this worker, those with requests in flight */
	int					in_flight;	/* requests */
	OutboxTenantLimits *limits;		/* NULL: it never had any */
	OutboxGroup			group;
	char				name[FLEXIBLE_ARRAY_MEMBER];
} OutboxTenant;

/*
 * The first returns the tenant with this name, with one endpoint more.  The second takes
 * an endpoint away, and frees the tenant with the last one.  The third returns NULL if no
 * endpoint has this tenant.
 */
extern OutboxTenant *outbox_tenant_join(const char *name);
extern void			 outbox_tenant_leave(OutboxTenant *t);
extern OutboxTenant *outbox_tenant_find(const char *name);

/* NULL: there is no tenant. */
static inline const char *
outbox_tenant_name(const OutboxTenant *t)
{
	return t ? t->name : NULL;
}

/* 'max_in_flight' 0: no limit.  'rate_limit' is per second, and 0: no limit. */
extern void outbox_tenant_set_limits(OutboxTenant *t, int max_in_flight,
									 double rate_limit);

/* True if the tenant has limits at all. */
extern bool outbox_tenant_is_limited(const OutboxTenant *t);

/*
 * The first is true if one more request may be sent now.  The second returns when the
 * rate allows one.
 */
extern bool		   outbox_tenant_allows(OutboxTenant *t, TimestampTz now);
extern TimestampTz outbox_tenant_token_at(OutboxTenant *t, TimestampTz now);

/* An endpoint begins or ends a request.  'only': it has no other in flight. */
extern void outbox_tenant_begin(OutboxTenant *t, bool only);
extern void outbox_tenant_end(OutboxTenant *t, bool only);

#endif /* OUTBOX_TENANT_H */
