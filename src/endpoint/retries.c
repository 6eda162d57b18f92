/*
 * retries.c
 *	  Owns the parked deliveries of an endpoint whose retry is not due yet.
 *
 * Memory has only the seq, the time and the group of each.  The event is read again when
 * the retry is due.  Where there are too many, memory has the retries that are due next,
 * and outbox.parked alone has the others.
 */
#include "base/outbox.h"

#include "common/hashfn.h"

#include "endpoint/lane.h"
#include "endpoint/retries.h"
#include "endpoint/status.h"

/*
 * µs.  Retries are taken at multiples of this after their time, so that one query loads
 * several.
 */
#define TICK 5000

typedef struct SeqEntry
{
	int64		 seq;
	char		 status;
	OutboxRetry *retry;
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

	if (x->due != y->due)
		return x->due < y->due ? 1 : -1;
	return x->seq < y->seq ? 1 : -1;
}

void
outbox_retries_init(OutboxEndpoint *ep)
{
	ep->queue->retries = pairingheap_allocate(compare_due, NULL);
	ep->queue->retry_index = seqs_create(ep->cxt, 2, NULL);
}

/* True if it is beyond the retries that the heap has to have. */
static bool
is_beyond(const OutboxEndpoint *ep, TimestampTz due, int64 seq)
{
	return due > ep->queue->retries_due ||
		(due == ep->queue->retries_due && seq > ep->queue->retries_seq);
}

void
outbox_retries_add(OutboxEndpoint *ep, int64 seq, TimestampTz due, int64 group,
				   bool tried, OutboxLane *lane)
{
	if (!is_beyond(ep, due, seq))
		outbox_retries_push(ep, seq, due, group, tried, lane);
	else if (lane)
		lane->retrying = true;
}

void
outbox_retries_push(OutboxEndpoint *ep, int64 seq, TimestampTz due, int64 group,
					bool tried, OutboxLane *lane)
{
	OutboxRetry *retry;
	SeqEntry	*entry;
	bool		 found;

	entry = seqs_insert(ep->queue->retry_index, seq, &found);
	if (found)
		return;
	if (lane)
	{
		lane->blockers++;

		/* This retry may have set 'retrying'. */
		if (lane->retrying)
			outbox_lane_forget_rows(lane);
	}
	retry = MemoryContextAlloc(ep->cxt, sizeof(OutboxRetry));
	retry->seq = seq;
	retry->due = due;
	retry->group = group;
	retry->tried = tried;
	retry->lane = lane;
	retry->loading = false;
	entry->retry = retry;
	pairingheap_add(ep->queue->retries, &retry->node);
	ep->queue->nretries++;
}

void
outbox_retries_add_parked(OutboxEndpoint *ep, int64 seq, TimestampTz due, const char *key,
						  int64 group)
{
	outbox_retries_add(ep, seq, due, group, true,
					   outbox_lane_get(ep, outbox_lane_key(ep, key), false));
}

OutboxRetry *
outbox_retries_first(const OutboxEndpoint *ep)
{
	return pairingheap_is_empty(ep->queue->retries) ?
		NULL :
		pairingheap_container(OutboxRetry, node, pairingheap_first(ep->queue->retries));
}

TimestampTz
outbox_retries_due(const OutboxEndpoint *ep)
{
	const OutboxRetry *first = outbox_retries_first(ep);

	if (first == NULL || first->due > DT_NOEND - TICK ||
		ep->queue->nready >= outbox_endpoint_at_once(ep))
		return DT_NOEND;
	return (first->due + TICK - 1) / TICK * TICK;
}

static bool
is_due(const OutboxEndpoint *ep, TimestampTz now)
{
	/* While the breaker is open, any retry can be the probe, due or not. */
	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN)
		return outbox_retries_first(ep) && ep->queue->nready == 0 &&
			!outbox_status_probes_new(ep);
	return outbox_retries_due(ep) <= now;
}

bool
outbox_retries_has_due(OutboxEndpoint *ep, TimestampTz now)
{
	return is_due(ep, now) && outbox_status_is_ready(ep, now);
}

int
outbox_retries_take_due(OutboxEndpoint *ep, TimestampTz now, int64 *seqs, int max)
{
	int	  enough = ep->pace.breaker == OUTBOX_BREAKER_OPEN ? 1 :
															 outbox_endpoint_at_once(ep);
	int64 group = 0;
	int	  n = 0;

	while (n < max && outbox_retries_has_due(ep, now))
	{
		OutboxRetry *retry = outbox_retries_first(ep);

		if (n >= enough && (retry->group != group || group == 0 || enough == 1))
			break;
		pairingheap_remove_first(ep->queue->retries);
		group = retry->group;
		retry->loading = true;
		ep->queue->nretries--;
		ep->queue->nretries_loading++;
		seqs[n++] = retry->seq;
	}
	return n;
}

void
outbox_retries_not_loaded(OutboxEndpoint *ep, const int64 *seqs, int n)
{
	for (int i = 0; i < n; i++)
	{
		SeqEntry *entry = seqs_lookup(ep->queue->retry_index, seqs[i]);

		if (entry == NULL || !entry->retry->loading)
			continue;
		entry->retry->loading = false;
		pairingheap_add(ep->queue->retries, &entry->retry->node);
		ep->queue->nretries_loading--;
		ep->queue->nretries++;
	}
}

static void
forget(OutboxEndpoint *ep, OutboxRetry *retry)
{
	if (retry->lane)
		retry->lane->blockers--;
	seqs_delete(ep->queue->retry_index, retry->seq);
	pfree(retry);
}

OutboxLane *
outbox_retries_take_loaded(OutboxEndpoint *ep, int64 seq)
{
	SeqEntry   *entry = seqs_lookup(ep->queue->retry_index, seq);
	OutboxLane *lane;

	if (entry == NULL || !entry->retry->loading)
		return NULL;
	lane = entry->retry->lane;
	ep->queue->nretries_loading--;
	forget(ep, entry->retry);
	return lane;
}

void
outbox_retries_remove(OutboxEndpoint *ep, int64 seq)
{
	SeqEntry *entry = seqs_lookup(ep->queue->retry_index, seq);

	Assert(entry != NULL && !entry->retry->loading);
	pairingheap_remove(ep->queue->retries, &entry->retry->node);
	ep->queue->nretries--;
	forget(ep, entry->retry);
}

void
outbox_retries_make_due(OutboxEndpoint *ep, int64 seq, TimestampTz now)
{
	OutboxRetry *retry = seqs_lookup(ep->queue->retry_index, seq)->retry;

	pairingheap_remove(ep->queue->retries, &retry->node);
	retry->due = now;
	pairingheap_add(ep->queue->retries, &retry->node);
}

void
outbox_retries_first_due(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxRetry *retry = outbox_retries_first(ep);
	int64		 group = retry ? retry->group : 0;
	List		*together = NIL;
	ListCell	*cell;

	while (retry != NULL && (together == NIL || (group != 0 && retry->group == group)))
	{
		pairingheap_remove_first(ep->queue->retries);
		retry->due = Min(retry->due, now);
		together = lappend(together, retry);
		retry = outbox_retries_first(ep);
	}
	foreach (cell, together)
		pairingheap_add(ep->queue->retries, &((OutboxRetry *) lfirst(cell))->node);
	list_free(together);
}

void
outbox_retries_untried_due(OutboxEndpoint *ep, TimestampTz now)
{
	seqs_iterator it;
	SeqEntry	 *entry;

	seqs_start_iterate(ep->queue->retry_index, &it);
	while ((entry = seqs_iterate(ep->queue->retry_index, &it)) != NULL)
		if (!entry->retry->tried && !entry->retry->loading && entry->retry->due > now)
			outbox_retries_make_due(ep, entry->seq, now);
}

bool
outbox_retries_contains(OutboxEndpoint *ep, int64 seq)
{
	SeqEntry *entry = seqs_lookup(ep->queue->retry_index, seq);

	return entry != NULL && !entry->retry->loading;
}

void
outbox_retries_forget(OutboxEndpoint *ep)
{
	OutboxRetry	 *first = outbox_retries_first(ep);
	seqs_iterator it;
	SeqEntry	 *entry;

	if (!is_beyond(ep, first->due, first->seq - 1))
	{
		ep->queue->retries_due = first->due;
		ep->queue->retries_seq = first->seq - 1;
	}
	seqs_start_iterate(ep->queue->retry_index, &it);
	while ((entry = seqs_iterate(ep->queue->retry_index, &it)) != NULL)
	{
		Assert(!entry->retry->loading);
		if (entry->retry->lane)
		{
			entry->retry->lane->blockers--;
			entry->retry->lane->retrying = true;
		}
		pfree(entry->retry);
	}
	seqs_reset(ep->queue->retry_index);
	pairingheap_reset(ep->queue->retries);
	ep->queue->nretries = 0;
}
