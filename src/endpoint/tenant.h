#ifndef OUTBOX_TENANT_H
#define OUTBOX_TENANT_H

#include "lib/ilist.h"
#include "endpoint/flow.h"
#include "endpoint/pace.h"

/* Endpoints of the database that get the same events, by tenant (subscribers.c). */
typedef struct OutboxGroup
{
	uint64	   changed_at; /* the number of changes when one came, went or changed */
	dlist_head members;	   /* OutboxSubscription */
} OutboxGroup;

/* How much may be kept in outbox.parked for the endpoints of a tenant (0: any amount). */
typedef struct OutboxKeptMost
{
	int64 rows;	 /* without cancelled ones */
	int64 bytes; /* of their events */
	int64 age;	 /* µs since their events were emitted */
} OutboxKeptMost;

/* The same, and the rows of this worker's endpoints. */
typedef struct OutboxKeptLimit
{
	OutboxKeptMost most;

	int64 rows;
	int64 sized;	/* rows whose bytes were read, and that are there (kept_limit.c) */
	int64 bytes;	/* of these */
	int64 changed;	/* rows that came or went since, whose bytes are guessed */
	bool  complete; /* true if the bytes of all rows were read */
	int64 given_up; /* because of the limits, and not reported yet */
	bool  looked;	/* true if the present step has examined the tenant */
} OutboxKeptLimit;

typedef struct OutboxTenant
{
	int			nendpoints; /* that the worker knows */
	bool		asked; /* true while the receiver of one of them is asked for a proof */
	OutboxFlow	flow;  /* its requests, and its endpoints that wait for slots */
	OutboxPace *pace;  /* limits of all its endpoints: max_in_flight (0: none), and
							  * rate_limit (NULL: it never had any) */
	OutboxKeptLimit *kept; /* NULL: it never had such a limit */
	OutboxGroup		 group;
	char			 name[FLEXIBLE_ARRAY_MEMBER];
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

/* Tells tenants apart where there is no room for names.  0: there is none. */
extern uint64 outbox_tenant_number(const OutboxTenant *t);

/* 'max_in_flight' 0: no limit.  'rate_limit' is per second, and 0: no limit. */
extern void outbox_tenant_set_limits(OutboxTenant *t, int max_in_flight,
									 double rate_limit, OutboxKeptMost kept);

static inline bool
outbox_kept_most_is_set(OutboxKeptMost most)
{
	return most.rows > 0 || most.bytes > 0 || most.age > 0;
}

/* The first is true if any tenant, the second if this one has a limit of what is kept. */
extern bool outbox_tenants_are_limited(void);

static inline bool
outbox_tenant_is_limited(const OutboxTenant *t)
{
	return t && t->kept && outbox_kept_most_is_set(t->kept->most);
}

/*
 * Returns when one more request may be sent: 'now', or a later time.  DT_NOEND: when a
 * request in flight has ended.
 */
extern TimestampTz outbox_tenant_allows_at(OutboxTenant *t, TimestampTz now);

/* NULL: there is no tenant, and it allows everything. */
static inline bool
outbox_tenant_allows(OutboxTenant *t, TimestampTz now)
{
	return t == NULL || t->pace == NULL || outbox_tenant_allows_at(t, now) <= now;
}

#endif /* OUTBOX_TENANT_H */
