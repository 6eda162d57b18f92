/*
 * tenant.h
 *	  What the endpoints of one tenant have together: limits, and requests in flight.
 */
#ifndef OUTBOX_TENANT_H
#define OUTBOX_TENANT_H

#include "lib/ilist.h"
#include "endpoint/pace.h"

typedef struct OutboxTenant
{
	int			nendpoints; /* of this worker */
	int			nsending;	/* of them, those with requests in flight */
	int			in_flight;	/* requests */
	OutboxPace *pace;		/* max_in_flight (0: no limit) and rate_limit for all of them
						  * (NULL: it never had limits) */
	dlist_head	waiting;	/* endpoints that these limits keep from sending */
	char		name[FLEXIBLE_ARRAY_MEMBER];
} OutboxTenant;

/*
 * The first returns the tenant with this name, with one endpoint more.  The second takes
 * an endpoint away, and frees the tenant with the last one.
 */
extern OutboxTenant *outbox_tenant_join(const char *name);
extern void			 outbox_tenant_leave(OutboxTenant *t);

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
