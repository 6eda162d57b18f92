/*
 * subscribers.c
 *	  Owns which endpoints subscribe to a topic, and remembers it.
 *
 * Endpoints are grouped by their tenant.  When a topic comes for the first time with
 * events of a tenant, it is matched against the patterns of that tenant's endpoints, and
 * looked up in a trie of the endpoints without a tenant.  From then on it is found in a
 * hash table.  So an event costs nothing for the endpoints that do not get it.
 */
#include "base/outbox.h"

#include "common/hashfn.h"
#include "lib/ilist.h"

#include "base/compat.h"
#include "base/memory.h"
#include "base/names.h"
#include "base/pieces.h"
#include "endpoint/pattern_trie.h"
#include "endpoint/subscribers.h"

/* Topics and their subscribers may take 1/TOPICS_SHARE of the worker's memory. */
#define TOPICS_SHARE 16

static int nhere;

/* An endpoint that is known, of this worker or of another. */
typedef struct OutboxSubscription
{
	dlist_node			   node;	 /* in its group */
	OutboxTenant		  *tenant;	 /* NULL: none */
	OutboxEndpoint		  *endpoint; /* NULL: it is another worker's */
	OutboxOtherSubscriber *other;	 /* NULL: it is this worker's */
	uint64				   found_by; /* the search that has found it last */
	int					   nlinks;	 /* patterns in the trie */
	OutboxPatternLink	   links[FLEXIBLE_ARRAY_MEMBER];
} OutboxSubscription;

static OutboxPieces		  pieces = {.name = "subscriptions"};
static OutboxGroup		  no_tenant;
static OutboxPatternTrie *trie; /* of endpoints without a tenant */
static uint64			  changes;

#define SH_PREFIX topics
#define SH_ELEMENT_TYPE OutboxSubscribers
#define SH_KEY name
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

size_t
outbox_subscribers_memory(void)
{
	return MemoryContextMemAllocated(outbox_pieces_context(&pieces), true);
}

static OutboxGroup *
group_of(OutboxTenant *tenant)
{
	return tenant ? &tenant->group : &no_tenant;
}

static OutboxSubscription *
enter(OutboxTenant *tenant, char **patterns, int npatterns)
{
	int					nlinks = tenant ? 0 : npatterns;
	OutboxSubscription *s = outbox_piece_alloc(&pieces,
											   offsetof(OutboxSubscription, links) +
												   sizeof(s->links[0]) * nlinks);
	OutboxGroup		   *g = group_of(tenant);

	s->tenant = tenant;
	dlist_push_tail(&g->members, &s->node);
	g->changed_at = ++changes;
	s->nlinks = nlinks;
	for (int i = 0; i < nlinks; i++)
		outbox_pattern_trie_add(trie, patterns[i], &s->links[i], s);
	return s;
}

static void
leave(OutboxSubscription *s)
{
	for (int i = 0; i < s->nlinks; i++)
		outbox_pattern_trie_remove(trie, &s->links[i]);
	dlist_delete(&s->node);
	group_of(s->tenant)->changed_at = ++changes;
	pfree(s);
}

void
outbox_subscribers_add(OutboxEndpoint *ep)
{
	OutboxSubscription *s;

	outbox_subscribers_remove(ep);
	s = enter(ep->tenant, ep->config.patterns, ep->config.npatterns);
	s->endpoint = ep;
	ep->member.subscription = s;
	nhere++;
}

void
outbox_subscribers_remove(OutboxEndpoint *ep)
{
	if (ep->member.subscription == NULL)
		return;
	leave(ep->member.subscription);
	ep->member.subscription = NULL;
	nhere--;
}

void
outbox_subscribers_add_other(OutboxOtherSubscriber *other)
{
	OutboxTenant	   *t = other->tenant ? outbox_tenant_join(other->tenant) : NULL;
	OutboxSubscription *s = enter(t, other->patterns, other->npatterns);

	s->other = other;
	other->subscription = s;
}

void
outbox_subscribers_remove_other(OutboxOtherSubscriber *other)
{
	OutboxTenant *t = other->subscription->tenant;

	leave(other->subscription);
	other->subscription = NULL;
	if (t)
		outbox_tenant_leave(t);
}

void
outbox_subscribers_init(void)
{
	newer = make_topics();
	older = make_topics();
	trie = outbox_pattern_trie_make(outbox_pieces_context(&pieces));
	dlist_init(&no_tenant.members);
}

void
outbox_subscribers_of_tenant(OutboxTenant *tenant,
							 void (*each)(void *arg, OutboxEndpoint *ep), void *arg)
{
	dlist_iter iter;

	dlist_foreach(iter, &tenant->group.members)
	{
		OutboxSubscription *s = dlist_container(OutboxSubscription, node, iter.cur);

		if (s->endpoint)
			each(arg, s->endpoint);
	}
}

bool
outbox_subscribers_here(void)
{
	return nhere > 0;
}

bool
outbox_subscribes(const OutboxEndpoint *ep, const char *topic, size_t len, OutboxRow *row)
{
	if (ep->tenant)
	{
		size_t		tenant_len;
		const char *tenant = outbox_row_tenant(row, &tenant_len);

		if (tenant == NULL || strlen(ep->tenant->name) != tenant_len ||
			memcmp(ep->tenant->name, tenant, tenant_len) != 0)
			return false;
	}
	return outbox_topic_in_list(topic, len, ep->config.patterns, ep->config.npatterns);
}

/* Its arrays have room for 'n'. */
static OutboxSubscribers *
remember(const char *name, int n, int nothers)
{
	bool			   found;
	OutboxSubscribers *s = topics_lookup(newer.by_name, name);
	char			  *room;

	if (s == NULL)
		s = topics_insert(newer.by_name, MemoryContextStrdup(newer.cxt, name), &found);
	else
		pfree(s->endpoints); /* it is out of date */
	room = MemoryContextAllocZero(newer.cxt,
								  (sizeof(*s->endpoints) + sizeof(*s->result) +
								   sizeof(*s->cancelled)) *
									  n);
	s->endpoints = (OutboxEndpoint **) room;
	s->result = (OutboxFilterResult *) (s->endpoints + n);
	s->cancelled = (bool *) (s->result + n);
	s->n = n;
	s->nothers = nothers;
	account_topics();
	return s;
}

/* The result of a search.  Each endpoint is there once. */
typedef struct Found
{
	uint64				 search;
	OutboxSubscription **list;
	int					 n;
	int					 max;
	int					 nhere;
} Found;

static void
take_found(void *arg, void *item)
{
	Found			   *f = arg;
	OutboxSubscription *s = item;

	if (s->found_by == f->search)
		return;
	s->found_by = f->search;
	outbox_room(f->list, f->n, f->max, CurrentMemoryContext);
	f->list[f->n++] = s;
	f->nhere += s->endpoint != NULL;
}

/* The endpoints of this worker come first, by id. */
static int
compare_found(const void *a, const void *b)
{
	const OutboxEndpoint *x = (*(OutboxSubscription *const *) a)->endpoint;
	const OutboxEndpoint *y = (*(OutboxSubscription *const *) b)->endpoint;

	if (x == NULL || y == NULL)
		return (x == NULL) - (y == NULL);
	return x->id < y->id ? -1 : x->id > y->id;
}

/* Matches the topic against the patterns of a tenant (NULL: of none), and of no tenant. */
static OutboxSubscribers *
match(const char *name, const char *topic, const OutboxTenant *t)
{
	static uint64	   search;
	size_t			   len = strlen(topic);
	Found			   f = {.search = ++search};
	OutboxSubscribers *s;
	dlist_iter		   iter;

	outbox_pattern_trie_match(trie, topic, len, take_found, &f);
	if (t)
		dlist_foreach(iter, unconstify(dlist_head *, &t->group.members))
		{
			OutboxSubscription	 *m = dlist_container(OutboxSubscription, node, iter.cur);
			const OutboxEndpoint *ep = m->endpoint;

			if (ep ? outbox_topic_in_list(topic, len, ep->config.patterns,
										  ep->config.npatterns) :
					 outbox_topic_in_list(topic, len, m->other->patterns,
										  m->other->npatterns))
				take_found(&f, m);
		}
	if (f.n > 1)
		qsort(f.list, f.n, sizeof(*f.list), compare_found);
	s = remember(name, f.nhere, f.n - f.nhere);
	for (int i = 0; i < f.nhere; i++)
		s->endpoints[i] = f.list[i]->endpoint;
	s->found_at = changes;
	if (f.list)
		pfree(f.list);
	return s;
}

/* True if it is not NULL and was found after the last change of an endpoint that it may concern. */
static bool
is_valid(const OutboxSubscribers *s, const OutboxTenant *t)
{
	return s && s->found_at >= no_tenant.changed_at &&
		(t == NULL || s->found_at >= t->group.changed_at);
}

/*
 * Finds the subscribers that are remembered under a name, which is a tenant, a line feed
 * and a topic.  NULL: nothing, or it is out of date.
 */
static OutboxSubscribers *
recall(const char *name, const OutboxTenant *t)
{
	OutboxSubscribers *s = topics_lookup(newer.by_name, name);
	OutboxSubscribers *copy;

	if (is_valid(s, t))
		return s;
	if (MemoryContextMemAllocated(newer.cxt, true) >
		outbox_memory_limit() / TOPICS_SHARE / 2)
		forget_older();
	s = topics_lookup(older.by_name, name);
	if (!is_valid(s, t))
		return NULL;
	copy = remember(name, s->n, s->nothers);
	memcpy(copy->endpoints, s->endpoints, sizeof(*s->endpoints) * s->n);
	copy->found_at = s->found_at;
	return copy;
}

/* The event's tenant.  NULL: no endpoint has subscribed to its events. */
static const OutboxTenant *
tenant_of_row(OutboxRow *row)
{
	char		  name[OUTBOX_MAX_TENANT + 1];
	size_t		  len;
	const char	 *tenant = row ? outbox_row_tenant(row, &len) : NULL;
	OutboxTenant *t;

	if (tenant == NULL || len == 0 || len > OUTBOX_MAX_TENANT)
		return NULL;
	memcpy(name, tenant, len);
	name[len] = '\0';
	t = outbox_tenant_find(name);
	return t && !dlist_is_empty(&t->group.members) ? t : NULL;
}

OutboxSubscribers *
outbox_subscribers_of(const char *topic, size_t len, OutboxRow *row)
{
	char				name[OUTBOX_MAX_TENANT + 1 + OUTBOX_MAX_TOPIC + 1];
	const OutboxTenant *t = tenant_of_row(row);
	size_t				tenant_len = t ? strlen(t->name) : 0;
	OutboxSubscribers  *s;

	/*
	 * A longer topic has bypassed the checks of outbox.events.  Its first 255 bytes
	 * count.
	 */
	len = Min(len, OUTBOX_MAX_TOPIC);
	memcpy(name, t ? t->name : "", tenant_len);
	name[tenant_len] = '\n';
	memcpy(name + tenant_len + 1, topic, len);
	name[tenant_len + 1 + len] = '\0';
	s = recall(name, t);
	return s ? s : match(name, name + tenant_len + 1, t);
}

bool
outbox_subscribers_exist(const char *topic)
{
	const OutboxSubscribers *s = outbox_subscribers_of(topic, strlen(topic), NULL);

	return s->n > 0 || s->nothers > 0;
}
