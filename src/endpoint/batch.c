/*
 * batch.c
 *	  Owns which deliveries are sent together in one request.
 *
 * A batch takes ready deliveries, and behind each head of a lane its followers.  So
 * events of one key are sent in their order, and a lane is never in two batches at once.
 * Deliveries that failed together come back as a group.  An event's last attempt is
 * always a request of its own, so a bad event cannot make others dead.
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "endpoint/batch.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/queue.h"
#include "endpoint/status.h"
#include "endpoint/window.h"
#include "log/durable.h"
#include "log/payload.h"

/*
 * True if the next failure would exhaust max_attempts, or max_age has passed, or the receiver
 * refuses its topic.
 */
static bool
goes_alone(const OutboxEndpoint *ep, const OutboxDelivery *d, TimestampTz now)
{
	return (d->attempts > 0 && ep->config.max_attempts > 0 &&
			d->attempts >= ep->config.max_attempts - 1) ||
		(d->first_attempt_at != 0 && now - d->first_attempt_at >= ep->config.max_age) ||
		outbox_pace_refused(&ep->pace, d->event->topic);
}

static bool
is_durable(const OutboxDelivery *d)
{
	return d->event->page->lsn <= outbox_durable_lsn;
}

/* True if it can be in one batch with any other delivery that can. */
static bool
can_share_request(const OutboxEndpoint *ep, const OutboxDelivery *d, TimestampTz now)
{
	return d->group == 0 && is_durable(d) && !goes_alone(ep, d, now);
}

/*
 * True if there is about enough for a full batch.  It only adds up numbers of
 * events and lengths of payloads.
 */
static bool
fills_a_batch(OutboxEndpoint *ep, TimestampTz now)
{
	int	   n = 0;
	size_t bytes = 0;

	for (OutboxDelivery *d = NULL;
		 (d = outbox_delivery_next(&ep->queue->ready, d)) != NULL;)
	{
		if (!can_share_request(ep, d, now))
			continue;
		n += 1 + (d->lane && outbox_lane_is_free(d->lane) ? d->lane->nwaiting : 0);
		bytes += d->event->payload_len;
		if (n >= ep->config.batch_size || bytes >= OUTBOX_BATCH_BYTES)
			return true;
	}
	return false;
}

/*
 * Returns when the delivery has waited long enough for others.  A time of emit that
 * lies ahead means that the clock was set back: then it does not wait.
 */
static TimestampTz
due_at(const OutboxEndpoint *ep, const OutboxDelivery *d, TimestampTz now)
{
	return d->event->created_at > now ? now :
										d->event->created_at + ep->config.batch_wait;
}

TimestampTz
outbox_batch_due(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxDelivery *d;

	if (ep->config.batch_size == 1 || ep->config.batch_wait == 0 ||
		ep->queue->nready == 0)
		return DT_NOEND;
	d = dlist_head_element(OutboxDelivery, node, &ep->queue->ready);
	return can_share_request(ep, d, now) ? due_at(ep, d, now) : DT_NOEND;
}

/*
 * True if the endpoint has events that it can read but has not read yet.  One that could not
 * be read for until now is on none of the lists.
 */
static bool
can_read_more(OutboxEndpoint *ep, TimestampTz now)
{
	dlist_node *turns = ep->lists->turn_node;

	return outbox_window_wants_events(ep, now) && outbox_window_leads(ep) &&
		!outbox_memory_is_short() &&
		(outbox_is_listed(&turns[OUTBOX_TURN_READ]) ||
		 (!outbox_is_listed(&turns[OUTBOX_TURN_AHEAD]) &&
		  !outbox_is_listed(&turns[OUTBOX_TURN_JUDGE])));
}

/*
 * True if the ready deliveries have to wait for others.  They wait until batch_wait is
 * over, and while the endpoint can read more.  A full batch does not wait.
 */
static bool
must_wait(OutboxEndpoint *ep, TimestampTz now)
{
	bool			more = can_read_more(ep, now);
	OutboxDelivery *d;

	if ((ep->config.batch_wait == 0 && !more) || ep->pace.breaker == OUTBOX_BREAKER_OPEN)
		return false;
	while (ep->queue->nready < ep->config.batch_size && outbox_window_take_next(ep, &d))
		;
	d = dlist_head_element(OutboxDelivery, node, &ep->queue->ready);
	return can_share_request(ep, d, now) && (more || now < due_at(ep, d, now)) &&
		!fills_a_batch(ep, now);
}

static void
forget_body(void *arg)
{
	outbox_batch_body_forget(&((OutboxBatch *) arg)->body);
}

static OutboxBatch *
make_batch(OutboxEndpoint *ep, int max)
{
	MemoryContext cxt = AllocSetContextCreate(ep->cxt, "outbox batch",
											  ALLOCSET_DEFAULT_SIZES);
	OutboxBatch	 *b = MemoryContextAllocZero(cxt, sizeof(OutboxBatch));

	b->endpoint = ep;
	b->cxt = cxt;
	outbox_batch_body_init(&b->body, cxt, ep->config.request.format, max);
	b->max = max;
	b->members = MemoryContextAlloc(cxt, sizeof(OutboxMember) * max);
	b->end.func = forget_body;
	b->end.arg = b;
	MemoryContextRegisterResetCallback(cxt, &b->end);
	return b;
}

static void
take_off_its_list(OutboxEndpoint *ep, OutboxDelivery *d)
{
	if (d->state == OUTBOX_DELIVERY_WAITING)
		outbox_lane_leave(ep, d->lane, d);
	else
		outbox_delivery_leave_ready(ep, d);
}

/*
 * Memory for the whole batch is asked for once, with the first member.  A body grows by
 * doubling, so a full one may take twice OUTBOX_BATCH_BYTES.  If there is none, and the
 * endpoint may send without room, the batch has one member.
 */
static OutboxEvent *
load(OutboxBatch *b, OutboxEvent *event, TimestampTz now, bool *gone, const char **error)
{
	OutboxEndpoint *ep = b->endpoint;

	if (b->n > 0)
		return outbox_shape_load(event, &ep->config.request.shape, OUTBOX_PAYLOAD_ITSELF,
								 ep->id, gone, error);
	if (!outbox_memory_fits(b->request_bytes + 2 * OUTBOX_BATCH_BYTES))
		b->max = 1;
	return outbox_endpoint_load(ep, event, OUTBOX_PAYLOAD_ITSELF, ep->queue->nin_flight,
								b->request_bytes, now, gone, error);
}

/*
 * Appends the event to the body.  Returns why it can never be sent, with the words
 * in '*error'.  NULL: it was appended, or '*full' is true.
 *
 * A text can become half as long in UTF-8.  So a payload of more than twice the
 * size of a body cannot fit behind another event, and is not read.
 */
static const char *
append(OutboxBatch *b, OutboxDelivery *d, TimestampTz now, const char **error, bool *full)
{
	OutboxEvent *event;
	bool		 gone;

	if (b->n > 0 && d->event->payload_len > 2 * OUTBOX_BATCH_BYTES)
	{
		*full = true;
		return NULL;
	}
	event = load(b, d->event, now, &gone, error);
	if (gone)
	{
		*error = "the event is no longer in the log";
		return "event is gone";
	}
	if (*error)
		return "invalid event";
	if (event == NULL)
	{
		b->held_up = *full = true;
		return NULL;
	}
	*error = outbox_batch_body_append(&b->body, event, full);
	outbox_page_unref(event->page);
	if (*error == NULL && !*full)
	{
		b->members[b->n++].delivery = d;
		b->attempt = Max(b->attempt, d->attempts + 1);
	}
	return *error ? "invalid event" : NULL;
}

/*
 * Takes a delivery into the batch, or makes it dead if it can never be sent.  It is
 * ready, or the next of a lane whose head is in the batch.  False: the batch is
 * full or held up, and nothing has changed.
 */
static bool
take(OutboxBatch *b, OutboxDelivery *d, TimestampTz now)
{
	OutboxEndpoint *ep = b->endpoint;
	const char	   *error = NULL;
	const char	   *reason = outbox_outcome_unfit(d, now, &error);
	bool			full = false;

	if (reason == NULL)
		reason = append(b, d, now, &error, &full);
	if (full)
		return false;

	take_off_its_list(ep, d);
	if (reason == NULL)
	{
		outbox_delivery_begin(ep, d, now);
		d->batch = b;
		if (d->lane == NULL || d->lane->head == d)
			ep->queue->nheads++;
		return true;
	}

	outbox_outcome_give_up(ep, d, reason, error);
	if (d->lane && d->lane->head == d)
	{
		d->lane->head = NULL;
		outbox_lane_advance(ep, d->lane);
	}
	return true;
}

/*
 * Takes the followers of a lane whose head is in the batch.  False: the batch is
 * full.
 */
static bool
take_followers(OutboxBatch *b, OutboxLane *lane, int64 group, TimestampTz now)
{
	OutboxDelivery *d;

	while (b->n < b->max && lane->head && lane->head->batch == b &&
		   (d = outbox_lane_peek(lane)) != NULL && d->group == group && is_durable(d) &&
		   !goes_alone(b->endpoint, d, now))
		if (!take(b, d, now))
			return false;
	return true;
}

/*
 * Takes the deliveries from 'ready' that have the group of the first.  True: the batch
 * has room left.
 */
static bool
take_ready(OutboxBatch *b, int64 group, TimestampTz now)
{
	OutboxEndpoint	  *ep = b->endpoint;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &ep->queue->ready)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);
		OutboxLane	   *lane = d->lane;

		if (b->n >= b->max || !is_durable(d))
			return false;
		if (d->group != group || outbox_outcome_hold(ep, d, now) ||
			(b->n > 0 && goes_alone(ep, d, now)))
			continue;
		if (goes_alone(ep, d, now))
			b->max = 1;
		if (!take(b, d, now) ||
			(lane && d->batch == b && !take_followers(b, lane, group, now)))
			return false;
	}
	return b->n < b->max;
}

/* Takes further events from the window, in their order. */
static void
take_from_window(OutboxBatch *b, TimestampTz now)
{
	OutboxEndpoint *ep = b->endpoint;
	OutboxDelivery *d;

	while (b->n < b->max && outbox_window_take_next(ep, &d))
	{
		bool is_ready = d != NULL && d->state == OUTBOX_DELIVERY_READY;

		if (d == NULL)
			continue;
		if (!is_durable(d))
			return;
		if (is_ready && outbox_outcome_hold(ep, d, now))
			continue;
		if (is_ready && goes_alone(ep, d, now))
			return; /* it stays ready */
		if (is_ready ? !take(b, d, now) : !take_followers(b, d->lane, 0, now))
			return;
	}
}

static int
compare_members(const void *a, const void *b)
{
	int64 x = ((const OutboxMember *) a)->delivery->seq;
	int64 y = ((const OutboxMember *) b)->delivery->seq;

	return x < y ? -1 : x > y;
}

/*
 * Puts the members in the order of the body, because the receiver knows only that order.
 * An event may have been taken before one with a lower seq, whose transaction committed
 * later.
 */
static void
complete(OutboxBatch *b)
{
	qsort(b->members, b->n, sizeof(OutboxMember), compare_members);
	outbox_batch_body_complete(&b->body, b->id);
}

OutboxBatch *
outbox_batch_next(OutboxEndpoint *ep, size_t request_bytes, TimestampTz now,
				  bool *nothing)
{
	OutboxBatch	   *b;
	OutboxDelivery *d;

	*nothing = true;
	if (!outbox_status_may_send(ep, now))
		return NULL;
	for (;;)
	{
		int64 group;

		while (ep->queue->nready == 0)
			if (!outbox_window_take_next(ep, &d))
				return NULL;
		if (must_wait(ep, now))
			return NULL;
		d = dlist_head_element(OutboxDelivery, node, &ep->queue->ready);
		if (!is_durable(d))
			return NULL;

		/* While the breaker is open, one event is enough as a probe. */
		b = make_batch(ep,
					   ep->pace.breaker == OUTBOX_BREAKER_OPEN ? 1 :
																 ep->config.batch_size);
		b->request_bytes = request_bytes;
		group = d->group;
		if (take_ready(b, group, now) && group == 0)
			take_from_window(b, now);
		if (b->held_up)
		{
			/* All of them are sent later, so that a group stays together. */
			*nothing = false;
			ep->queue->nin_flight++;
			outbox_batch_put_back(b);
			return NULL;
		}
		if (b->n > 0)
			break;

		/* The ready deliveries are dead: try the next ones. */
		MemoryContextDelete(b->cxt);
	}
	*nothing = false;
	complete(b);
	ep->queue->nin_flight++;
	return b;
}

void
outbox_batch_land(OutboxBatch *b)
{
	OutboxEndpoint *ep = b->endpoint;

	ep->queue->nin_flight--;
	ep->place.dirty = true;
	for (int i = 0; i < b->n; i++)
	{
		OutboxDelivery *d = b->members[i].delivery;

		dlist_delete(&d->node);
		if (d->lane == NULL || d->lane->head == d)
			ep->queue->nheads--;
		d->batch = NULL;
	}
}

void
outbox_batch_put_back(OutboxBatch *b)
{
	OutboxEndpoint *ep = b->endpoint;

	outbox_batch_land(b);
	for (int i = b->n - 1; i >= 0; i--)
	{
		OutboxDelivery *d = b->members[i].delivery;

		if (d->lane && d->lane->head != d)
			outbox_lane_return(ep, d->lane, d);
		else
			outbox_delivery_ready_again(ep, d);
	}
	MemoryContextDelete(b->cxt);
}
