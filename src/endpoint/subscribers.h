/*
 * subscribers.h
 *	  Which endpoints of the database subscribe to a topic.
 */
#ifndef OUTBOX_SUBSCRIBERS_H
#define OUTBOX_SUBSCRIBERS_H

#include "endpoint/endpoint.h"

/* The subscription of an endpoint that another worker serves. */
typedef struct OutboxOtherSubscriber
{
	int		  npatterns;
	char	**patterns;
	JsonPath *filter; /* NULL: none */
} OutboxOtherSubscriber;

/* The subscribers of one topic. */
typedef struct OutboxSubscribers
{
	const char			   *topic;
	uint32					hash;
	char					status;
	int						n;
	OutboxEndpoint		  **endpoints;
	OutboxFilterResult	   *result;	   /* of each endpoint's filter for the current
										* event */
	bool				   *cancelled; /* true where the current event is cancelled */
	int						nothers;
	OutboxOtherSubscriber **others;
} OutboxSubscribers;

extern void outbox_subscribers_init(void);

/*
 * Sets the endpoints and subscriptions anew.  The arrays remain the caller's, and
 * must exist until the next call.
 */
extern void outbox_subscribers_set(OutboxEndpoint **endpoints, int n,
								   OutboxOtherSubscriber *others, int nothers);

/* True if this worker serves any endpoint. */
extern bool outbox_subscribers_here(void);

/* Returns the subscribers of a topic.  The result is valid until the next call. */
extern OutboxSubscribers *outbox_subscribers_of(const char *topic, size_t len);

/* True if any endpoint of the database subscribes to the topic. */
extern bool outbox_subscribers_exist(const char *topic);

/*
 * True if an endpoint that another worker serves gets this event.  Evaluates
 * filters.
 */
extern bool outbox_subscribers_elsewhere(const OutboxSubscribers *s, OutboxRow *row);

/*
 * The first is true if the endpoint subscribes to the topic now.  The second is
 * what its filter says of the event.  An event that cannot be read passes.
 */
extern bool outbox_subscribes(const OutboxEndpoint *ep, const char *topic, size_t len);
extern OutboxFilterResult outbox_passes(const OutboxEndpoint *ep, OutboxRow *row);

/*
 * True if the endpoint subscribes to the topic and the event passes its filter, or
 * the filter fails.
 */
extern bool outbox_subscribers_include(const OutboxEndpoint *ep, const char *topic,
									   size_t len, OutboxRow *row);

#endif /* OUTBOX_SUBSCRIBERS_H */
