/*
 * subscribers.c
 *	  Owns which endpoints subscribe to a topic, and remembers it.
 *
 * A topic is matched against all patterns when it comes for the first time, and
 * found in a hash table from then on.
 */
#include "base/outbox.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/memory.h"
#include "base/names.h"
#include "endpoint/subscribers.h"

/* Topics and their subscribers may take 1/TOPICS_SHARE of the worker's memory. */
#define TOPICS_SHARE 16

static OutboxEndpoint		**endpoints;
static int					  nendpoints;
static OutboxOtherSubscriber *others;
static int					  nothers;

#define SH_PREFIX topics
#define SH_ELEMENT_TYPE OutboxSubscribers
#define SH_KEY topic
#include "base/string_hash.h"

/*
 * Two tables of topics.  When the newer one fills half of their share, the older
 * one is dropped and the newer one becomes the older.  A topic that is found in the
 * older table is copied to the newer, so topics that come often stay.
 */
typedef struct Topics
{
	MemoryContext cxt;
	topics_hash	 *by_name;
} Topics;

static Topics newer;
static Topics older;
static size_t topics_account;

static Topics
make_topics(void)
{
	Topics t;

	t.cxt = AllocSetContextCreate(TopMemoryContext, "outbox topics",
								  ALLOCSET_DEFAULT_SIZES);
	t.by_name = topics_create(t.cxt, 64, NULL);
	return t;
}

static void
forget_older(void)
{
	MemoryContextDelete(older.cxt);
	older = newer;
	newer = make_topics();
}

static void
account_topics(void)
{
	outbox_memory_account(&topics_account,
						  MemoryContextMemAllocated(newer.cxt, true) +
							  MemoryContextMemAllocated(older.cxt, true));
}

void
outbox_subscribers_init(void)
{
	outbox_filter_limit_time();
	newer = make_topics();
	older = make_topics();
}

void
outbox_subscribers_set(OutboxEndpoint **here, int n, OutboxOtherSubscriber *elsewhere,
					   int nelsewhere)
{
	endpoints = here;
	nendpoints = n;
	others = elsewhere;
	nothers = nelsewhere;
	forget_older();
	forget_older();
	account_topics();
}

bool
outbox_subscribers_here(void)
{
	return nendpoints > 0;
}

static OutboxFilterResult
passes(JsonPath *filter, OutboxRow *row)
{
	return filter && !outbox_row_unreadable(row) ?
		outbox_filter(filter, outbox_row_payload(row)) :
		OUTBOX_FILTER_YES;
}

OutboxFilterResult
outbox_passes(const OutboxEndpoint *ep, OutboxRow *row)
{
	return passes(ep->config.filter, row);
}

bool
outbox_subscribes(const OutboxEndpoint *ep, const char *topic, size_t len)
{
	return outbox_topic_in_list(topic, len, ep->config.patterns, ep->config.npatterns);
}

bool
outbox_subscribers_include(const OutboxEndpoint *ep, const char *topic, size_t len,
						   OutboxRow *row)
{
	return outbox_subscribes(ep, topic, len) &&
		outbox_passes(ep, row) != OUTBOX_FILTER_NO;
}

static OutboxSubscribers *
remember(const char *topic, OutboxEndpoint **ep, int n, OutboxOtherSubscriber **other,
		 int nother)
{
	bool			   found;
	OutboxSubscribers *s = topics_insert(newer.by_name,
										 MemoryContextStrdup(newer.cxt, topic), &found);

	s->n = n;
	s->endpoints = MemoryContextAlloc(newer.cxt, sizeof(*ep) * n);
	memcpy(s->endpoints, ep, sizeof(*ep) * n);
	s->result = MemoryContextAllocZero(newer.cxt, sizeof(*s->result) * n);
	s->cancelled = MemoryContextAllocZero(newer.cxt, sizeof(*s->cancelled) * n);
	s->nothers = nother;
	s->others = MemoryContextAlloc(newer.cxt, sizeof(*other) * nother);
	memcpy(s->others, other, sizeof(*other) * nother);
	account_topics();
	return s;
}

/*
 * Matches the topic against all patterns.  The arrays that are kept are exactly as
 * long as needed.
 */
static OutboxSubscribers *
match(const char *topic, size_t len)
{
	OutboxEndpoint		  **ep = palloc(sizeof(*ep) * nendpoints);
	OutboxOtherSubscriber **other = palloc(sizeof(*other) * nothers);
	int						n = 0;
	int						nother = 0;
	OutboxSubscribers	   *s;

	for (int i = 0; i < nendpoints; i++)
		if (outbox_subscribes(endpoints[i], topic, len))
			ep[n++] = endpoints[i];
	for (int i = 0; i < nothers; i++)
		if (outbox_topic_in_list(topic, len, others[i].patterns, others[i].npatterns))
			other[nother++] = &others[i];
	s = remember(topic, ep, n, other, nother);
	pfree(ep);
	pfree(other);
	return s;
}

OutboxSubscribers *
outbox_subscribers_of(const char *topic, size_t len)
{
	char			   key[OUTBOX_MAX_TOPIC + 1];
	OutboxSubscribers *s;

	/*
	 * A longer topic has bypassed the checks of outbox.events.  Its first 255 bytes
	 * count.
	 */
	len = Min(len, OUTBOX_MAX_TOPIC);
	memcpy(key, topic, len);
	key[len] = '\0';
	s = topics_lookup(newer.by_name, key);
	if (s)
		return s;

	if (MemoryContextMemAllocated(newer.cxt, true) >
		outbox_memory_limit() / TOPICS_SHARE / 2)
		forget_older();
	s = topics_lookup(older.by_name, key);
	return s == NULL ? match(key, len) :
					   remember(key, s->endpoints, s->n, s->others, s->nothers);
}

bool
outbox_subscribers_exist(const char *topic)
{
	const OutboxSubscribers *s = outbox_subscribers_of(topic, strlen(topic));

	return s->n > 0 || s->nothers > 0;
}

bool
outbox_subscribers_elsewhere(const OutboxSubscribers *s, OutboxRow *row)
{
	for (int i = 0; i < s->nothers; i++)
		if (passes(s->others[i]->filter, row) != OUTBOX_FILTER_NO)
			return true;
	return false;
}
