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
	OutboxOtherSubscriber *subscriber;
} OtherEndpoint;

/* By id, in a context that also has the subscribers.  NULL: none was read yet. */
static MemoryContext others_cxt;
static HTAB			*others;

/* Of the current reload.  The context is 'others_cxt', or a new one for all. */
static bool			  reading_all;
static MemoryContext  noted_cxt;
static OtherEndpoint *noted;
static int			  nnoted;
static int			  max_noted;

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

/* ------------------------------------------------------------- reading */

void
outbox_others_begin(bool all)
{
	reading_all = all;
	noted_cxt = all ? AllocSetContextCreate(CurTransactionContext, "outbox others",
											ALLOCSET_DEFAULT_SIZES) :
					  others_cxt;
	noted = NULL;
	nnoted = max_noted = 0;
}

void
outbox_others_note(const OutboxEndpointRow *s)
{
	MemoryContext		   old = MemoryContextSwitchTo(noted_cxt);
	OutboxOtherSubscriber *o = palloc(sizeof(OutboxOtherSubscriber));

	outbox_room(noted, nnoted, max_noted, noted_cxt);
	o->tenant = s->tenant ? pstrdup(s->tenant) : NULL;
	o->npatterns = s->npatterns;
	o->patterns = palloc(sizeof(char *) * Max(s->npatterns, 1));
	for (int i = 0; i < s->npatterns; i++)
		o->patterns[i] = pstrdup(s->patterns[i]);
	noted[nnoted++] = (OtherEndpoint){s->id, o};
	MemoryContextSwitchTo(old);
}

bool
outbox_others_noted(int32 id)
{
	for (int i = 0; i < nnoted; i++)
		if (noted[i].id == id)
			return true;
	return false;
}

void
outbox_others_keep(void)
{
	if (reading_all)
		MemoryContextSetParent(noted_cxt, TopMemoryContext);
}

/* -------------------------------------------------------------- taking */

static void
enter_other(const OtherEndpoint *other)
{
	OtherEndpoint *entry = hash_search(others, &other->id, HASH_ENTER, NULL);

	entry->subscriber = other->subscriber;
}

static void
free_other(OutboxOtherSubscriber *o)
{
	for (int i = 0; i < o->npatterns; i++)
		pfree(o->patterns[i]);
	pfree(o->patterns);
	if (o->tenant)
		pfree(o->tenant);
	pfree(o);
}

static void
forget_other(int32 id)
{
	OtherEndpoint *o = find_other(id);

	if (o == NULL)
		return;
	outbox_subscribers_remove_other(o->subscriber);
	free_other(o->subscriber);
	(void) hash_search(others, &id, HASH_REMOVE, NULL);
}

static void
end_reading(void)
{
	if (noted)
		pfree(noted);
	noted = NULL;
	nnoted = max_noted = 0;
}

static void
take_noted(void)
{
	for (int i = 0; i < nnoted; i++)
	{
		enter_other(&noted[i]);
		outbox_subscribers_add_other(noted[i].subscriber);
	}
	end_reading();
}

static void
leave_all(void)
{
	HASH_SEQ_STATUS scan;
	OtherEndpoint  *o;

	if (others == NULL)
		return;
	hash_seq_init(&scan, others);
	while ((o = hash_seq_search(&scan)) != NULL)
		outbox_subscribers_remove_other(o->subscriber);
	MemoryContextDelete(others_cxt);
}

void
outbox_others_take_all(void)
{
	HASHCTL how = {.keysize = sizeof(int32),
				   .entrysize = sizeof(OtherEndpoint),
				   .hcxt = noted_cxt};

	leave_all();
	others_cxt = noted_cxt;
	others = hash_create("outbox others", Max(nnoted, 64), &how,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	take_noted();
}

void
outbox_others_take(const List *ids)
{
	const ListCell *cell;

	foreach (cell, ids)
		forget_other(lfirst_int(cell));
	take_noted();
}

/* The notes of a reload of all are gone with its transaction. */
void
outbox_others_failed(void)
{
	if (reading_all)
		noted = NULL;
	for (int i = 0; noted && i < nnoted; i++)
		free_other(noted[i].subscriber);
	end_reading();
}
