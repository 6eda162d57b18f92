/*
 * others.c
 *	  Owns the subscriptions of the endpoints that other workers of the database
 *	  serve.
 *
 * Only one worker counts events that nobody wants, and it must know of all endpoints.
 */
#include "base/outbox.h"

#include "utils/hsearch.h"

#include "base/pieces.h"
#include "endpoint/subscribers.h"
#include "worker/others.h"

typedef struct OtherEndpoint
{
	int32				   id;
	uint64				   read; /* the last reload that has read it */
	OutboxOtherSubscriber *subscriber;
} OtherEndpoint;

static OutboxPieces pieces = {.name = "others"}; /* the subscribers, one piece each */
static HTAB		   *others;						 /* by id (NULL: none was read yet) */
static uint64		reads;						 /* the number of the last reload */

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
	return MemoryContextMemAllocated(outbox_pieces_context(&pieces), true);
}

void
outbox_others_begin(void)
{
	HASHCTL how = {.keysize = sizeof(int32), .entrysize = sizeof(OtherEndpoint)};

	reads++;
	if (others)
		return;
	how.hcxt = outbox_pieces_context(&pieces);
	others = hash_create("outbox others", 64, &how,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
remove_other(OutboxOtherSubscriber *o)
{
	outbox_subscribers_remove_other(o);
	pfree(o);
}

/* Copies a text to '*at', and moves that behind it. */
static char *
put(char **at, const char *text)
{
	char *to = *at;

	*at = stpcpy(to, text) + 1;
	return to;
}

/* The new subscription comes before the former one goes, so its tenant stays. */
void
outbox_others_note(const OutboxEndpointRow *s)
{
	size_t size = offsetof(OutboxOtherSubscriber, patterns) +
		sizeof(char *) * s->npatterns;
	size_t				   texts = s->tenant ? strlen(s->tenant) + 1 : 0;
	OutboxOtherSubscriber *o;
	OtherEndpoint		  *entry;
	char				  *at;
	bool				   found;

	for (int i = 0; i < s->npatterns; i++)
		texts += strlen(s->patterns[i]) + 1;
	o = outbox_piece_alloc(&pieces, size + texts);
	at = (char *) o + size;
	o->tenant = s->tenant ? put(&at, s->tenant) : NULL;
	o->npatterns = s->npatterns;
	for (int i = 0; i < s->npatterns; i++)
		o->patterns[i] = put(&at, s->patterns[i]);
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
