/*
 * retries.c
 *	  Owns the parked deliveries of an endpoint that wait for their time, and the
 *	  events that were cancelled before they were sent.
 *
 * Nothing but a number and a time is kept of each; the event is read again when
 * it is due.
 */
#include "outbox.h"

#include "common/hashfn.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "lane.h"
#include "retries.h"

typedef struct SeqEntry
{
	int64		seq;
	char		status;
	OutboxRetry *retry;			/* NULL in the set of cancelled events */
} SeqEntry;

#define SH_PREFIX seqs
#define SH_ELEMENT_TYPE SeqEntry
#define SH_KEY_TYPE int64
#define SH_KEY seq
#define SH_HASH_KEY(tb, k) murmurhash32((uint32) ((uint64) (k) ^ ((uint64) (k) >> 32)))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static int
compare_due(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const OutboxRetry *x = pairingheap_const_container(OutboxRetry, node, a);
	const OutboxRetry *y = pairingheap_const_container(OutboxRetry, node, b);

	(void) arg;
	if (x->due != y->due)
		return x->due < y->due ? 1 : -1;
	return x->seq < y->seq ? 1 : -1;
}

void
outbox_retries_init(OutboxEndpoint *ep)
{
	ep->retries = pairingheap_allocate(compare_due, NULL);
	ep->retry_index = seqs_create(ep->cxt, 64, NULL);
}

void
outbox_retries_add(OutboxEndpoint *ep, int64 seq, TimestampTz due)
{
	OutboxRetry *retry;
	SeqEntry   *entry;
	bool		found;

	entry = seqs_insert(ep->retry_index, seq, &found);
	if (found)
		return;
	retry = MemoryContextAlloc(ep->cxt, sizeof(OutboxRetry));
	retry->seq = seq;
	retry->due = due;
	entry->retry = retry;
	pairingheap_add(ep->retries, &retry->node);
	ep->nretries++;
}

void
outbox_endpoint_add_retry(OutboxEndpoint *ep, int64 seq, TimestampTz due,
						  const char *key)
{
	key = outbox_lane_key(ep, key);
	if (key)
		outbox_lane_get(ep, key)->blockers++;
	outbox_retries_add(ep, seq, due);
}

bool
outbox_endpoint_has_due(OutboxEndpoint *ep, TimestampTz now)
{
	if (pairingheap_is_empty(ep->retries) || ep->nready >= OUTBOX_RETRIES_AT_ONCE ||
		!outbox_endpoint_may_send(ep, now))
		return false;

	/* While the breaker is open any delivery will do as a probe. */
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		return ep->nready == 0;
	return pairingheap_container(OutboxRetry, node,
								 pairingheap_first(ep->retries))->due <= now;
}

int
outbox_endpoint_take_due(OutboxEndpoint *ep, TimestampTz now, int64 *seqs, int max)
{
	int			n = 0;

	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		max = 1;
	while (n < max && outbox_endpoint_has_due(ep, now))
	{
		int64		seq = pairingheap_container(OutboxRetry, node,
												pairingheap_first(ep->retries))->seq;

		outbox_retries_remove(ep, seq);
		ep->nretries_loading++;
		seqs[n++] = seq;
	}
	return n;
}

/* False: it does not wait here. */
bool
outbox_retries_remove(OutboxEndpoint *ep, int64 seq)
{
	SeqEntry   *entry = seqs_lookup(ep->retry_index, seq);

	if (entry == NULL)
		return false;
	pairingheap_remove(ep->retries, &entry->retry->node);
	pfree(entry->retry);
	seqs_delete(ep->retry_index, seq);
	ep->nretries--;
	return true;
}

bool
outbox_retries_wait(OutboxEndpoint *ep, int64 seq)
{
	return seqs_lookup(ep->retry_index, seq) != NULL;
}

void
outbox_retries_cancel(OutboxEndpoint *ep, int64 seq)
{
	bool		found;

	if (ep->cancelled == NULL)
		ep->cancelled = seqs_create(ep->cxt, 16, NULL);
	seqs_insert(ep->cancelled, seq, &found);
}

bool
outbox_retries_was_cancelled(OutboxEndpoint *ep, int64 seq)
{
	return ep->cancelled != NULL && seqs_delete(ep->cancelled, seq);
}
