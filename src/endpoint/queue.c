/*
 * queue.c
 *	  Owns the lists that an endpoint's deliveries are on.
 *
 * Each state has a list (OutboxDeliveryState).  A delivery that is held is on a list of
 * its own, too.
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "endpoint/queue.h"

static MemoryContext deliveries; /* of all endpoints, so that few bytes are left over */
static size_t		 account;

static void
count_memory(void)
{
	outbox_memory_account(&account, MemoryContextMemAllocated(deliveries, false));
}

OutboxDelivery *
outbox_delivery_make(OutboxEndpoint *ep, OutboxEvent *event, bool parked)
{
	OutboxDelivery *d;

	if (deliveries == NULL)
		deliveries = SlabContextCreate(TopMemoryContext, "outbox deliveries",
									   SLAB_DEFAULT_BLOCK_SIZE, sizeof(OutboxDelivery));
	d = MemoryContextAllocZero(deliveries, sizeof(OutboxDelivery));
	count_memory();
	d->endpoint = ep;
	d->event = event;
	d->seq = event->seq;
	d->parked = parked;
	event->page->refs++;
	outbox_delivery_hold(d);
	return d;
}

void
outbox_delivery_hold(OutboxDelivery *d)
{
	if (!d->parked)
		d->endpoint->queue->nheld += outbox_list_add(&d->endpoint->queue->held,
													 &d->held_node);
}

static void
release(OutboxDelivery *d)
{
	d->endpoint->queue->nheld -= outbox_list_remove(&d->held_node);
}

void
outbox_delivery_free(OutboxDelivery *d)
{
	release(d);
	if (d->event)
		outbox_page_unref(d->event->page);
	if (d->error)
		pfree(d->error);
	pfree(d);
	count_memory();
}

void
outbox_delivery_free_list(dlist_head *list)
{
	while (!dlist_is_empty(list))
		outbox_delivery_free(
			dlist_container(OutboxDelivery, node, dlist_pop_head_node(list)));
}

/*
 * The views show a ready or waiting delivery with the state in its row.  So deliveries
 * with a row are counted by it.
 */
void
outbox_delivery_count(OutboxDelivery *d, int n)
{
	if (d->parked && d->was_retry)
		d->endpoint->queue->nloaded_retries += n;
	else if (d->parked)
		d->endpoint->queue->nloaded_blocked += n;
}

void
outbox_delivery_ready(OutboxEndpoint *ep, OutboxDelivery *d)
{
	d->state = OUTBOX_DELIVERY_READY;
	dlist_push_tail(&ep->queue->ready, &d->node);
	ep->queue->nready++;
	outbox_delivery_count(d, 1);
}

void
outbox_delivery_ready_again(OutboxEndpoint *ep, OutboxDelivery *d)
{
	d->state = OUTBOX_DELIVERY_READY;
	dlist_push_head(&ep->queue->ready, &d->node);
	ep->queue->nready++;
	outbox_delivery_count(d, 1);
}

void
outbox_delivery_leave_ready(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	ep->queue->nready--;
	outbox_delivery_count(d, -1);
}

void
outbox_delivery_begin(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	d->state = OUTBOX_DELIVERY_IN_FLIGHT;
	d->started_at = now;
	d->probe = (ep->pace.breaker == OUTBOX_BREAKER_OPEN);
	d->url_version = ep->config.url_version;
	dlist_push_tail(&ep->queue->in_flight, &d->node);
}

void
outbox_delivery_settle(OutboxEndpoint *ep, OutboxDelivery *d, OutboxVerdict verdict)
{
	release(d);
	d->verdict = verdict;
	d->state = OUTBOX_DELIVERY_SETTLING;
	dlist_push_tail(&ep->queue->settling, &d->node);
	ep->queue->nsettling++;
	ep->place.dirty = true;
}
