/*
 * endpoint.c
 *	  Owns an endpoint in the worker as a whole: how it is made and freed, and which
 *	  delivery it sends next.
 *
 * It uses neither SQL nor HTTP.  Reading adds events to the window (window.c).  Sending
 * takes deliveries (outbox_endpoint_next()) and brings outcomes (outcome.c).  Settling
 * writes the deliveries on 'settling' and reports back (parking.c).
 */
#include "base/outbox.h"

#include "base/compat.h"
#include "base/memory.h"
#include "endpoint/endpoint.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/queue.h"
#include "endpoint/retries.h"
#include "endpoint/packed_settings.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/durable.h"

static MemoryContext structs; /* of all OutboxEndpoint */

#define LACKS_MEMORY "outbox.worker_memory is used up"

/*
 * Bytes of a payload that each endpoint may send without room (memory.h).  A larger one goes
 * without room if no other one does.
 */
#define SMALL_PAYLOAD (64 * 1024)

static OutboxEndpoint *without_room; /* sends such a payload, or has (NULL: none) */

#define WORK_BYTES 4096 /* that an endpoint takes, about, while it does not rest */

#define WORK_BLOCK 2048 /* its first block: with OutboxWork, and what is empty at first */

#define STRUCTS_BLOCK \
	(8 * SLAB_DEFAULT_BLOCK_SIZE) /* so that little of it is left over */

/* Constant, so that writing to it ends the process. */
static const OutboxWork none = {
	.feed = {.cancelled_upto = PG_INT64_MIN},
	.queue = {.lanes_all = true, .retries_due = DT_NOEND},
	.table = {.rows_upto = PG_INT64_MAX},
};

const OutboxEndpointLink outbox_no_link = {.state = OUTBOX_LINK_UP, .look_at = DT_NOEND};

static void
set_work(OutboxEndpoint *ep, MemoryContext cxt, OutboxWork *work)
{
	ep->cxt = cxt;
	ep->feed = &work->feed;
	ep->queue = &work->queue;
	ep->table = &work->table;
	ep->lists = &work->lists;
}

static void
make_work(OutboxEndpoint *ep)
{
	MemoryContext cxt = AllocSetContextCreate(structs, "outbox endpoint", 0, WORK_BLOCK,
											  ALLOCSET_SMALL_MAXSIZE);
	MemoryContext old = MemoryContextSwitchTo(cxt);

	set_work(ep, cxt, palloc0(sizeof(OutboxWork)));
	ep->lists->endpoint = ep;
	outbox_lanes_init(ep);
	outbox_retries_init(ep);
	dlist_init(&ep->queue->ready);
	dlist_init(&ep->queue->in_flight);
	dlist_init(&ep->queue->settling);
	dlist_init(&ep->queue->loading);
	dlist_init(&ep->queue->parking);
	dlist_init(&ep->queue->asking);
	dlist_init(&ep->queue->held);
	MemoryContextSwitchTo(old);
	outbox_tally_wake(ep);
}

OutboxEndpoint *
outbox_endpoint_create(MemoryContext parent, int32 id)
{
	OutboxEndpoint *ep;

	/* 100,000 endpoints may rest.  Fields that only the others need are in OutboxWork. */
	StaticAssertStmt(sizeof(OutboxEndpoint) <= 600, "an endpoint that rests is small");

	if (structs == NULL)
		structs = SlabContextCreate(parent, "outbox endpoints", STRUCTS_BLOCK,
									sizeof(OutboxEndpoint));
	ep = MemoryContextAllocZero(structs, sizeof(OutboxEndpoint));
	ep->id = id;
	ep->link = unconstify(OutboxEndpointLink *, &outbox_no_link);
	make_work(ep);
	return ep;
}

static bool
has_parked(const OutboxEndpoint *ep)
{
	for (int i = 0; i < OUTBOX_ROW_STATUSES; i++)
		if (ep->table->rows[i] != 0)
			return true;
	return !outbox_has_all_rows(ep) || ep->table->sweep_key != NULL ||
		ep->table->unblocking || ep->feed->cancelled_upto != PG_INT64_MIN;
}

bool
outbox_endpoint_may_rest(const OutboxEndpoint *ep)
{
	const OutboxQueue *q = ep->queue;

	return outbox_is_attached(ep) && outbox_is_counted(ep) && ep->feed->backlog == 0 &&
		ep->feed->window == NULL && !ep->feed->drop_window && q->nheld == 0 &&
		q->nready == 0 && q->nin_flight == 0 && q->nwaiting == 0 && q->nsettling == 0 &&
		q->nretries == 0 && q->nretries_loading == 0 && outbox_has_all_retries(ep) &&
		q->lanes_all && outbox_lanes_count(ep) == 0 && !has_parked(ep) &&
		(ep->proof == NULL || ep->proof->challenge == OUTBOX_CHALLENGE_NONE);
}

static void
free_work(OutboxEndpoint *ep)
{
	MemoryContext cxt = ep->cxt;

	outbox_cursor_clear(&ep->feed->cursor);
	outbox_cursor_clear(&ep->feed->frontier);
	outbox_cursor_clear(&ep->feed->own);
	outbox_cursor_clear(&ep->feed->counter);
	set_work(ep, NULL, unconstify(OutboxWork *, &none));
	MemoryContextDelete(cxt);
}

void
outbox_endpoint_rest(OutboxEndpoint *ep, TimestampTz now)
{
	free_work(ep);
	outbox_tally_rest(ep, now);
	outbox_memory_freed(WORK_BYTES);
}

void
outbox_endpoint_wake(OutboxEndpoint *ep)
{
	if (!outbox_endpoint_rests(ep))
		return;
	make_work(ep);
	outbox_memory_taken(WORK_BYTES);
	outbox_endpoint_nothing_parked(ep);
}

void
outbox_endpoint_nothing_parked(OutboxEndpoint *ep)
{
	ep->feed->cancelled_upto = PG_INT64_MIN;
	ep->queue->lanes_all = true;
	ep->queue->retries_due = DT_NOEND;
	ep->table->rows_upto = PG_INT64_MAX;
}

void
outbox_endpoint_free(OutboxEndpoint *ep)
{
	Assert(ep->queue->nin_flight == 0);
	if (without_room == ep)
		without_room = NULL;
	if (!outbox_endpoint_rests(ep))
	{
		outbox_delivery_free_list(&ep->queue->ready);
		outbox_delivery_free_list(&ep->queue->settling);
		outbox_lanes_free(ep);
		outbox_window_clear(ep);
		outbox_window_free(ep);
		free_work(ep);
	}
	outbox_tally_free(ep);
	outbox_pace_free(&ep->pace);
	outbox_settings_free(&ep->config);
	if (ep->tenant)
		outbox_tenant_leave(ep->tenant);
	if (ep->proof)
		pfree(ep->proof);
	pfree(ep);
}

/*
 * Requests leave 1/READ_SHARE of the memory to events that are read.  An endpoint without
 * an event does not wait for memory, so the others would take all that becomes free.
 */
#define READ_SHARE 8

static bool
has_any(const OutboxEndpoint *ep, int nin_flight)
{
	return nin_flight > 0 || ep->queue->nsettling > 0;
}

/*
 * True if a request may be sent that takes so many bytes more, besides and for its payload.
 * It may if they fit into outbox.worker_memory.  It may also if the endpoint has no other
 * request in flight ('nothers' is 0) and nothing on 'settling', which holds memory as well,
 * its tenant has no request in flight, and the payload is small or no other large one goes
 * without room.
 */
static bool
has_memory(OutboxEndpoint *ep, int nothers, size_t request_bytes, size_t payload_bytes,
		   TimestampTz now)
{
	if (outbox_memory_fits(request_bytes + payload_bytes +
						   outbox_memory_limit() / READ_SHARE))
		return true;
	if (!has_any(ep, nothers) && (ep->tenant == NULL || ep->tenant->flow.in_flight == 0))
	{
		if (payload_bytes <= SMALL_PAYLOAD)
			return true;
		if (without_room == NULL || without_room == ep ||
			!has_any(without_room, without_room->queue->nin_flight))
		{
			without_room = ep;
			return true;
		}
	}
	outbox_endpoint_note_lack(ep, LACKS_MEMORY, now);
	return false;
}

/*
 * A payload that was left in the log is taken for as large as its jsonb.  Short numbers and
 * escaped characters can make the text 45 times as large.  It is then given up, and memory
 * is asked for again.  Three times the size was asked for, and text and body take twice, so
 * a text may be larger by half.
 */
OutboxEvent *
outbox_endpoint_load(OutboxEndpoint *ep, OutboxEvent *event, OutboxFormat format,
					 int nothers, size_t request_bytes, TimestampTz now, bool *gone,
					 const char **problem)
{
	const OutboxShape *shape = &ep->config.request.shape;
	OutboxEvent		  *whole = NULL;
	size_t			   asked;

	*gone = false;
	*problem = NULL;
	do
	{
		if (whole)
			outbox_page_unref(whole->page);
		asked = event->payload_len;
		if (!has_memory(ep, nothers, request_bytes,
						outbox_shape_cost(event, shape, format), now))
			return NULL;
		whole = outbox_shape_load(event, shape, format, ep->id, gone, problem);
	} while (whole && event->payload_len > asked + asked / 2);
	return whole;
}

void
outbox_endpoint_note_lack(OutboxEndpoint *ep, const char *what, TimestampTz at)
{
	ep->queue->lacks = what;
	ep->queue->lacked_at = at;
}

/*
 * Returns the reason that held a request back in the last second, or holds back reading
 * now.  Memory can be over its bound for as long as requests last, because each tenant,
 * and each endpoint without one, may send one request without room.
 */
const char *
outbox_endpoint_lacks(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->queue->lacks && now - ep->queue->lacked_at < USECS_PER_SEC)
		return ep->queue->lacks;
	return ep->feed->backlog > 0 && ep->feed->window_count == 0 &&
			ep->queue->nready == 0 && ep->queue->nin_flight > 0 &&
			!outbox_memory_fits(0) && outbox_status_may_send(ep, now) ?
		LACKS_MEMORY :
		NULL;
}

/* Number of events to take from the window for one of a topic that is not refused. */
static int
before_accepted(const OutboxEndpoint *ep)
{
	for (int i = 0; i < ep->feed->window_count; i++)
	{
		const OutboxWindowEntry *entry = outbox_window_at(ep, i);

		if (!entry->cancelled && entry->filter == OUTBOX_FILTER_YES &&
			outbox_pace_refused(&ep->pace, entry->event->topic) == NULL)
			return i + 1;
	}
	return 0;
}

/*
 * Returns the delivery that is ready and is sent next.  A probe is not of a topic that the
 * receiver refuses, if another one is at hand: it may have nothing against the others.
 */
static OutboxDelivery *
next_ready(OutboxEndpoint *ep)
{
	OutboxDelivery *first = dlist_head_element(OutboxDelivery, node, &ep->queue->ready);

	if (ep->pace.breaker == OUTBOX_BREAKER_CLOSED ||
		outbox_pace_refused(&ep->pace, first->event->topic) == NULL ||
		ep->config.ordering == OUTBOX_ORDER_STRICT)
		return first;
	for (;;)
	{
		OutboxDelivery *d = NULL;
		int				n;

		while ((d = outbox_delivery_next(&ep->queue->ready, d)) != NULL)
			if (outbox_pace_refused(&ep->pace, d->event->topic) == NULL)
				return d;

		/* A delivery from the window may have to wait behind its key. */
		n = before_accepted(ep);
		if (n == 0)
			return first;
		while (n-- > 0)
			if (!outbox_window_take_next(ep, &d))
				return first;
	}
}

OutboxDelivery *
outbox_endpoint_next(OutboxEndpoint *ep, TimestampTz now)
{
	if (!outbox_status_may_send(ep, now))
		return NULL;

	for (;;)
	{
		OutboxDelivery *d;
		const char	   *reason;
		const char	   *error;

		while (ep->queue->nready == 0)
			if (!outbox_window_take_next(ep, &d))
				return NULL;

		/* A crash could still undo the event's commit, so it is not sent yet. */
		d = next_ready(ep);
		if (d->event->page->lsn > outbox_durable_lsn)
			return NULL;
		if (outbox_outcome_hold(ep, d, now))
			continue;
		outbox_delivery_leave_ready(ep, d);
		outbox_delivery_begin(ep, d, now);
		ep->queue->nin_flight++;
		ep->queue->nheads++;

		reason = outbox_outcome_unfit(d, now, &error);
		if (reason)
		{
			outbox_outcome_dead(ep, d, reason, error);
			continue;
		}
		return d;
	}
}

void
outbox_endpoint_put_back(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	ep->queue->nin_flight--;
	ep->queue->nheads--;
	ep->place.dirty = true;
	d->transfer = NULL;
	outbox_delivery_ready_again(ep, d);
}

static void
overflow(OutboxEndpoint *ep, OutboxDelivery *d)
{
	outbox_outcome_unsent(ep, d, "backlog",
						  "the backlog was larger than outbox.max_backlog_size");
}

/*
 * The list is walked again after each removal, because the next delivery of the
 * lane may have become ready.
 */
int
outbox_endpoint_overflow_ready(OutboxEndpoint *ep, int64 cut)
{
	bool			   keeps = ep->place.keeps;
	dlist_mutable_iter iter;
	int				   n = 0;
	int				   before;

	do
	{
		before = n;
		dlist_foreach_modify(iter, &ep->queue->ready)
		{
			OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

			if (d->parked || d->seq > cut)
				continue;
			if (keeps)
				outbox_outcome_keep(ep, d);
			else
			{
				outbox_delivery_leave_ready(ep, d);
				overflow(ep, d);
			}
			n++;
			break;
		}
	} while (n > before);
	return n;
}

void
outbox_endpoint_overflow(OutboxEndpoint *ep, OutboxEvent *event,
						 OutboxFilterResult filter)
{
	OutboxDelivery *d = outbox_delivery_make(ep, event, false);

	ep->feed->backlog--;
	ep->place.dirty = true;
	if (ep->place.keeps)
		outbox_window_place(ep, d, filter, false);
	else
		overflow(ep, d);
}
