/*
 * subscribers.c
 *	  Owns which endpoints subscribe to a topic, and remembers it.
 *
 * Endpoints are grouped by their tenant.  When a topic comes for the first time with
 * events of a tenant, it is matched against the patterns of that tenant's endpoints and
 * of those without a tenant.  From then on it is found in a hash table.  So an event
 * costs nothing for the endpoints of other tenants.
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

static int nhere;

/* The endpoints of one tenant, or of none. */
typedef struct TenantGroup
{
	const char *tenant; /* empty: none */
	uint32		hash;
	char		status;
	List	   *endpoints; /* OutboxEndpoint */
	List	   *others;	   /* OutboxOtherSubscriber */
} TenantGroup;

#define SH_PREFIX groups
#define SH_ELEMENT_TYPE TenantGroup
#define SH_KEY tenant
#include "base/string_hash.h"

static MemoryContext groups_cxt;
static groups_hash	*groups;

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
static bool	  outdated; /* true if the endpoints have changed since */

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
						  MemoryContextMemAllocated(groups_cxt, true) +
							  MemoryContextMemAllocated(newer.cxt, true) +
							  MemoryContextMemAllocated(older.cxt, true));
}

/* Before the next look at them. */
static void
forget_topics(void)
{
	if (!outdated)
		return;
	outdated = false;
	forget_older();
	forget_older();
	account_topics();
}

/* In the current memory context, which is the table's. */
static TenantGroup *
group_of(groups_hash *table, const char *tenant)
{
	TenantGroup *g = groups_lookup(table, tenant ? tenant : "");
	bool		 found;

	if (g == NULL)
	{
		g = groups_insert(table, pstrdup(tenant ? tenant : ""), &found);
		g->endpoints = g->others = NIL;
	}
	return g;
}

void
outbox_subscribers_set(OutboxEndpoint **here, int n, OutboxOtherSubscriber **elsewhere,
					   int nelsewhere)
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext, "outbox tenants",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	groups_hash	 *table = groups_create(cxt, 64, NULL);

	/* The table does not change once it is in use, and an error leaves the former. */
	(void) group_of(table, NULL);
	for (int i = 0; i < n; i++)
	{
		TenantGroup *g = group_of(table, here[i]->config.tenant);

		g->endpoints = lappend(g->endpoints, here[i]);
	}
	for (int i = 0; i < nelsewhere; i++)
	{
		TenantGroup *g = group_of(table, elsewhere[i]->tenant);

		g->others = lappend(g->others, elsewhere[i]);
	}
	MemoryContextSwitchTo(old);
	MemoryContextSetParent(cxt, TopMemoryContext);
	if (groups_cxt)
		MemoryContextDelete(groups_cxt);
	groups_cxt = cxt;
	groups = table;
	nhere = n;
	outdated = true;
}

/* A tenant that has neither is forgotten.  NULL stays. */
static void
forget_if_empty(TenantGroup *g)
{
	char *name = unconstify(char *, g->tenant);

	if (*name == '\0' || g->endpoints != NIL || g->others != NIL)
		return;
	groups_delete(groups, name);
	pfree(name);
}

void
outbox_subscribers_add(OutboxEndpoint *ep)
{
	MemoryContext old = MemoryContextSwitchTo(groups_cxt);
	TenantGroup	 *g = group_of(groups, ep->config.tenant);

	if (!list_member_ptr(g->endpoints, ep))
	{
		g->endpoints = lappend(g->endpoints, ep);
		nhere++;
	}
	MemoryContextSwitchTo(old);
	outdated = true;
}

void
outbox_subscribers_remove(OutboxEndpoint *ep)
{
	const char	*tenant = ep->config.tenant;
	TenantGroup *g = groups_lookup(groups, tenant ? tenant : "");

	if (g == NULL || !list_member_ptr(g->endpoints, ep))
		return;
	g->endpoints = list_delete_ptr(g->endpoints, ep);
	nhere--;
	forget_if_empty(g);
	outdated = true;
}

void
outbox_subscribers_add_other(OutboxOtherSubscriber *other)
{
	MemoryContext old = MemoryContextSwitchTo(groups_cxt);
	TenantGroup	 *g = group_of(groups, other->tenant);

	g->others = lappend(g->others, other);
	MemoryContextSwitchTo(old);
	outdated = true;
}

void
outbox_subscribers_remove_other(OutboxOtherSubscriber *other)
{
	TenantGroup *g = groups_lookup(groups, other->tenant ? other->tenant : "");

	if (g == NULL)
		return;
	g->others = list_delete_ptr(g->others, other);
	forget_if_empty(g);
	outdated = true;
}

void
outbox_subscribers_init(void)
{
	outbox_filter_limit_time();
	newer = make_topics();
	older = make_topics();
	outbox_subscribers_set(NULL, 0, NULL, 0);
}

bool
outbox_subscribers_here(void)
{
	return nhere > 0;
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
outbox_subscribes(const OutboxEndpoint *ep, const char *topic, size_t len, OutboxRow *row)
{
	if (ep->config.tenant)
	{
		size_t		tenant_len;
		const char *tenant = outbox_row_tenant(row, &tenant_len);

		if (tenant == NULL || strlen(ep->config.tenant) != tenant_len ||
			memcmp(ep->config.tenant, tenant, tenant_len) != 0)
			return false;
	}
	return outbox_topic_in_list(topic, len, ep->config.patterns, ep->config.npatterns);
}

bool
outbox_subscribers_include(const OutboxEndpoint *ep, const char *topic, size_t len,
						   OutboxRow *row)
{
	return outbox_subscribes(ep, topic, len, row) &&
		outbox_passes(ep, row) != OUTBOX_FILTER_NO;
}

static OutboxSubscribers *
remember(const char *name, OutboxEndpoint **ep, int n, OutboxOtherSubscriber **other,
		 int nother)
{
	bool			   found;
	OutboxSubscribers *s = topics_insert(newer.by_name,
										 MemoryContextStrdup(newer.cxt, name), &found);

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
 * Matches the topic against the patterns of a group.  Those of 'more' subscribe, too
 * (NULL: there are no others).  The arrays that are kept are exactly as long as needed.
 */
static OutboxSubscribers *
match(const char *name, const char *topic, const TenantGroup *g,
	  const OutboxSubscribers *more)
{
	size_t					len = strlen(topic);
	int						n = more ? more->n : 0;
	int						nother = more ? more->nothers : 0;
	OutboxEndpoint		  **ep = palloc(sizeof(*ep) * (n + list_length(g->endpoints)));
	OutboxOtherSubscriber **other = palloc(sizeof(*other) *
										   (nother + list_length(g->others)));
	OutboxSubscribers	   *s;
	ListCell			   *cell;

	if (more)
	{
		memcpy(ep, more->endpoints, sizeof(*ep) * n);
		memcpy(other, more->others, sizeof(*other) * nother);
	}
	foreach (cell, g->endpoints)
	{
		OutboxEndpoint *e = lfirst(cell);

		if (outbox_topic_in_list(topic, len, e->config.patterns, e->config.npatterns))
			ep[n++] = e;
	}
	foreach (cell, g->others)
	{
		OutboxOtherSubscriber *o = lfirst(cell);

		if (outbox_topic_in_list(topic, len, o->patterns, o->npatterns))
			other[nother++] = o;
	}
	s = remember(name, ep, n, other, nother);
	pfree(ep);
	pfree(other);
	return s;
}

/*
 * Finds what is remembered under a name, which is a tenant, a line feed and a topic.
 * NULL: nothing.  What it returned before remains valid.
 */
static OutboxSubscribers *
recall(const char *name)
{
	OutboxSubscribers *s = topics_lookup(newer.by_name, name);

	if (s)
		return s;
	if (MemoryContextMemAllocated(newer.cxt, true) >
		outbox_memory_limit() / TOPICS_SHARE / 2)
		forget_older();
	s = topics_lookup(older.by_name, name);
	return s ? remember(name, s->endpoints, s->n, s->others, s->nothers) : NULL;
}

/* The group of the event's tenant.  NULL: no endpoint has this tenant. */
static const TenantGroup *
group_of_row(OutboxRow *row)
{
	char		name[OUTBOX_MAX_TENANT + 1];
	size_t		len;
	const char *tenant = row ? outbox_row_tenant(row, &len) : NULL;

	if (tenant == NULL || len == 0 || len > OUTBOX_MAX_TENANT)
		return NULL;
	memcpy(name, tenant, len);
	name[len] = '\0';
	return groups_lookup(groups, name);
}

OutboxSubscribers *
outbox_subscribers_of(const char *topic, size_t len, OutboxRow *row)
{
	char			   name[OUTBOX_MAX_TENANT + 1 + OUTBOX_MAX_TOPIC + 1];
	char			   key[1 + OUTBOX_MAX_TOPIC + 1];
	const TenantGroup *g = group_of_row(row);
	OutboxSubscribers *s;
	OutboxSubscribers *all;

	forget_topics();

	/*
	 * A longer topic has bypassed the checks of outbox.events.  Its first 255 bytes
	 * count.
	 */
	len = Min(len, OUTBOX_MAX_TOPIC);
	key[0] = '\n';
	memcpy(key + 1, topic, len);
	key[len + 1] = '\0';
	if (g)
	{
		strlcpy(name, g->tenant, sizeof(name));
		strlcat(name, key, sizeof(name));
		s = recall(name);
		if (s)
			return s;
	}
	all = recall(key);
	if (all == NULL)
		all = match(key, key + 1, groups_lookup(groups, ""), NULL);
	return g ? match(name, key + 1, g, all) : all;
}

bool
outbox_subscribers_exist(const char *topic)
{
	const OutboxSubscribers *s = outbox_subscribers_of(topic, strlen(topic), NULL);

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
