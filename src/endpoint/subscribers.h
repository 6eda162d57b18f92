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
	OutboxFilterResult	   *result;	   /* of each endpoint's filter, for the event that
								 * is being looked at … */
	bool				   *cancelled; /* … and whether it is cancelled there */
	int						nothers;
	OutboxOtherSubscriber **others;
} OutboxSubscribers;

extern void outbox_subscribers_init(void);

/* The set of endpoints or a subscription changed.  The arrays stay the caller's. */
extern void outbox_subscribers_set(OutboxEndpoint **endpoints, int n,
								   OutboxOtherSubscriber *others, int nothers);

/* Does this worker serve any endpoint? */
extern bool outbox_subscribers_here(void);

/* Those of a topic.  They stay where they are until the next call. */
extern OutboxSubscribers *outbox_subscribers_of(const char *topic, size_t len);

/* Does any endpoint of the database subscribe to the topic? */
extern bool outbox_subscribers_exist(const char *topic);

/* Is this event one for an endpoint that another worker serves? */
extern bool outbox_subscribers_elsewhere(const OutboxSubscribers *s, OutboxRow *row);

/*
 * Does the endpoint subscribe to the topic now?  Does the event pass its filter?
 * One that cannot be read passes.
 */
extern bool outbox_subscribes(const OutboxEndpoint *ep, const char *topic, size_t len);
extern OutboxFilterResult outbox_passes(const OutboxEndpoint *ep, OutboxRow *row);

/* Both: does the endpoint get this event? */
extern bool outbox_subscribers_include(const OutboxEndpoint *ep, const char *topic,
									   size_t len, OutboxRow *row);

#endif /* OUTBOX_SUBSCRIBERS_H */
