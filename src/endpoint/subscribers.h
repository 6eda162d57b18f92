#ifndef OUTBOX_SUBSCRIBERS_H
#define OUTBOX_SUBSCRIBERS_H

#include "endpoint/endpoint.h"

/* The subscription of an endpoint that another worker serves. */
typedef struct OutboxOtherSubscriber
{
	struct OutboxSubscription *subscription;
	char					  *tenant; /* NULL: none */
	int						   npatterns;
	char					  *patterns[FLEXIBLE_ARRAY_MEMBER];
} OutboxOtherSubscriber;

/* The subscribers of one topic, for events of one tenant or of none. */
typedef struct OutboxSubscribers
{
	const char		   *name; /* of tenant and topic */
	uint32				hash;
	char				status;
	uint64				found_at; /* the number of changes of endpoints by then */
	int					n;
	OutboxEndpoint	  **endpoints; /* by id */
	OutboxFilterResult *result;	   /* of each endpoint's filter for the current
										* event */
	bool			   *cancelled; /* true where the current event is cancelled */
	int					nothers;   /* endpoints that other workers serve */
} OutboxSubscribers;

extern void outbox_subscribers_init(void);

/*
 * The settings of an endpoint have changed, if it is already known, or it is a new one.
 * _remove: the endpoint is about to be freed.  _other: the same for subscriptions of
 * endpoints that other workers serve.  The data that the struct points to remains the
 * caller's, until it is removed.  Each costs the same whatever the number of endpoints.
 * The remembered subscribers of topics are found again where they may have changed: for
 * events of one tenant, or for all if the endpoint has no tenant.
 */
extern void outbox_subscribers_add(OutboxEndpoint *ep);
extern void outbox_subscribers_remove(OutboxEndpoint *ep);
extern void outbox_subscribers_add_other(OutboxOtherSubscriber *other);
extern void outbox_subscribers_remove_other(OutboxOtherSubscriber *other);

/* Bytes that the subscriptions take, and not the remembered topics. */
extern size_t outbox_subscribers_memory(void);

/* True if this worker serves any endpoint. */
extern bool outbox_subscribers_here(void);

/* Calls 'each' with each endpoint of this worker that has this tenant. */
extern void outbox_subscribers_of_tenant(OutboxTenant *tenant,
										 void (*each)(void *arg, OutboxEndpoint *ep),
										 void *arg);

/*
 * Returns the subscribers to an event with this topic, each once.  The result is valid until
 * the next call.
 */
extern OutboxSubscribers *outbox_subscribers_of(const char *topic, size_t len,
												OutboxRow *row);

/* True if any endpoint of the database gets events without a tenant of this topic. */
extern bool outbox_subscribers_exist(const char *topic);

/* True if the endpoint now subscribes to the event's topic, and gets events of its tenant. */
extern bool outbox_subscribes(const OutboxEndpoint *ep, const char *topic, size_t len,
							  OutboxRow *row);

#endif /* OUTBOX_SUBSCRIBERS_H */
