/*
 * others.c
 *	  Owns the subscriptions of the endpoints that other workers of the database
 *	  serve.
 *
 * Only one worker counts events that nobody wants, and it must know of all endpoints.
 */
#include "base/outbox.h"

#include "utils/hsearch.h"

#include "endpoint/subscribers.h"
#include "worker/others.h"

typedef struct OtherEndpoint
{
	int32				   id;
	uint64				   read; /* the last reload that has read it */
	OutboxOtherSubscriber *subscriber;
} OtherEndpoint;

/* By id, in a context that also has the subscribers.  NULL: none was read yet. */
static MemoryContext others_cxt;
static HTAB			*others;
static uint64		 reads; /* the number of the last reload */

static OtherEndpoint *
find_other(int32 id)
{
	return others ? hash_search(others, &id, HASH_FIND, NULL) : NULL;
}

bool
outbox_others_have(int32 id)
{
	return find_other(id) != NULL;
}

int
outbox_others_count(void)
{
	return others ? (int) hash_get_num_entries(others) : 0;
}

size_t
outbox_others_memory(void)
{
	return others_cxt ? MemoryContextMemAllocated(others_cxt, true) : 0;
}

void
outbox_others_begin(void)
{
	HASHCTL how = {.keysize = sizeof(int32), .entrysize = sizeof(OtherEndpoint)};

	reads++;
	if (others)
		return;
	others_cxt = how.hcxt = AllocSetContextCreate(TopMemoryContext, "outbox others",
												  ALLOCSET_DEFAULT_SIZES);
	others = hash_create("outbox others", 64, &how,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
remove_other(OutboxOtherSubscriber *o)
{
	outbox_subscribers_remove_other(o);
	for (int i = 0; i < o->npatterns; i++)
		pfree(o->patterns[i]);
	pfree(o->patterns);
	if (o->tenant)
		pfree(o->tenant);
	pfree(o);
}

/* The new subscription comes before the former one goes, so its tenant stays. */
void
outbox_others_note(const OutboxEndpointRow *s)
{
	MemoryContext		   old = MemoryContextSwitchTo(others_cxt);
	OutboxOtherSubscriber *o = palloc(sizeof(OutboxOtherSubscriber));
	OtherEndpoint		  *entry;
	bool				   found;

	o->tenant = s->tenant ? pstrdup(s->tenant) : NULL;
	o->npatterns = s->npatterns;
	o->patterns = palloc(sizeof(char *) * Max(s->npatterns, 1));
	for (int i = 0; i < s->npatterns; i++)
		o->patterns[i] = pstrdup(s->patterns[i]);
	MemoryContextSwitchTo(old);
	outbox_subscribers_add_other(o);
	entry = hash_search(others, &s->id, HASH_ENTER, &found);
	if (found)
		remove_other(entry->subscriber);
	entry->subscriber = o;
	entry->read = reads;
}

bool
outbox_others_noted(int32 id)
{
	const OtherEndpoint *o = find_other(id);

	return o && o->read == reads;
}

static void
forget_other(OtherEndpoint *o)
{
	if (o == NULL || o->read == reads)
		return;
	remove_other(o->subscriber);
	(void) hash_search(others, &o->id, HASH_REMOVE, NULL);
}

void
outbox_others_end_all(void)
{
	HASH_SEQ_STATUS scan;
	OtherEndpoint  *o;

	hash_seq_init(&scan, others);
	while ((o = hash_seq_search(&scan)) != NULL)
		forget_other(o);
}

void
outbox_others_end(const List *ids)
{
	const ListCell *cell;

	foreach (cell, ids)
		forget_other(find_other(lfirst_int(cell)));
}
