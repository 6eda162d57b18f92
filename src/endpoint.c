/*
 * endpoint.c
 *	  One endpoint in the worker: which delivery goes next, and what an outcome
 *	  means for it, for its key and for the endpoint.
 *
 * Knows neither SQL nor HTTP.  Reading hands it events (push), sending takes
 * deliveries (next) and brings outcomes (done), settling persists what is on
 * 'settling' and reports back (settled).
 *
 * The frontier is the place in the log up to which events were looked at.
 * Everything before it is done, has a row in outbox.parked, or is in memory
 * on 'ready', 'in_flight' or 'waiting'; those few are stored with the position.
 */
#include "outbox.h"

#include <math.h>

#include "common/hashfn.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "endpoint.h"

typedef struct LaneEntry
{
	const char *key;
	uint32		hash;
	char		status;
	OutboxLane *lane;
} LaneEntry;

#define SH_PREFIX lanes
#define SH_ELEMENT_TYPE LaneEntry
#define SH_KEY_TYPE const char *
#define SH_KEY key
#define SH_HASH_KEY(tb, k) hash_bytes((const unsigned char *) (k), strlen(k))
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) (a)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* With more followers than this a lane is parked when memory runs short. */
#define LONG_LANE 16

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

OutboxEndpoint *
outbox_endpoint_create(MemoryContext parent, int32 id)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "outbox endpoint",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	OutboxEndpoint *ep = palloc0(sizeof(OutboxEndpoint));

	ep->id = id;
	ep->cxt = cxt;
	ep->lanes = lanes_create(cxt, 64, NULL);
	ep->retries = pairingheap_allocate(compare_due, NULL);
	dlist_init(&ep->ready);
	dlist_init(&ep->in_flight);
	dlist_init(&ep->settling);
	dlist_init(&ep->loading);
	dlist_init(&ep->parking);
	dlist_init(&ep->held);
	MemoryContextSwitchTo(old);
	return ep;
}

static void
release(OutboxDelivery *d)
{
	if (!d->held)
		return;
	d->held = false;
	dlist_delete(&d->held_node);
	d->endpoint->nheld--;
}

static void
free_delivery(OutboxDelivery *d)
{
	release(d);
	if (d->event)
		outbox_page_unref(d->event->page);
	if (d->error)
		pfree(d->error);
	pfree(d);
}

static void
free_list(dlist_head *list)
{
	while (!dlist_is_empty(list))
		free_delivery(dlist_container(OutboxDelivery, node,
									  dlist_pop_head_node(list)));
}

/* Nothing may be in flight any more. */
void
outbox_endpoint_free(OutboxEndpoint *ep)
{
	lanes_iterator it;
	LaneEntry  *entry;

	Assert(ep->nin_flight == 0);
	free_list(&ep->ready);
	free_list(&ep->settling);
	lanes_start_iterate(ep->lanes, &it);
	while ((entry = lanes_iterate(ep->lanes, &it)) != NULL)
		free_list(&entry->lane->waiting);
	while (ep->window_count > 0)
	{
		outbox_page_unref(ep->window[ep->window_start]->page);
		ep->window_start = (ep->window_start + 1) % OUTBOX_WINDOW;
		ep->window_count--;
	}
	outbox_cursor_clear(&ep->cursor);
	outbox_cursor_clear(&ep->frontier);
	outbox_cursor_clear(&ep->counter);
	if (ep->settings_cxt)
		MemoryContextDelete(ep->settings_cxt);
	if (ep->retired_cxt)
		MemoryContextDelete(ep->retired_cxt);
	MemoryContextDelete(ep->cxt);
}

/* ---------------------------------------------------------------- lanes */

static OutboxLane *
find_lane(OutboxEndpoint *ep, const char *key)
{
	LaneEntry  *entry = lanes_lookup(ep->lanes, key);

	return entry ? entry->lane : NULL;
}

static OutboxLane *
make_lane(OutboxEndpoint *ep, const char *key)
{
	OutboxLane *lane = MemoryContextAllocZero(ep->cxt, sizeof(OutboxLane));
	LaneEntry  *entry;
	bool		found;

	lane->key = MemoryContextStrdup(ep->cxt, key);
	dlist_init(&lane->waiting);
	entry = lanes_insert(ep->lanes, lane->key, &found);
	Assert(!found);
	entry->lane = lane;
	return lane;
}

static OutboxLane *
get_lane(OutboxEndpoint *ep, const char *key)
{
	OutboxLane *lane = find_lane(ep, key);

	return lane ? lane : make_lane(ep, key);
}

/* The key whose lane orders an event here; NULL: it is in no lane. */
static const char *
lane_key(const OutboxEndpoint *ep, const char *key)
{
	switch (ep->ordering)
	{
		case OUTBOX_ORDER_KEY:
			return key;
		case OUTBOX_ORDER_STRICT:
			return "";			/* no event has an empty key */
		case OUTBOX_ORDER_NONE:
			break;
	}
	return NULL;
}

static void
make_ready(OutboxEndpoint *ep, OutboxDelivery *d)
{
	d->state = OUTBOX_DELIVERY_READY;
	dlist_push_tail(&ep->ready, &d->node);
	ep->nready++;
}

static void
want_followers(OutboxEndpoint *ep, OutboxLane *lane)
{
	if (!lane->on_loading)
	{
		lane->on_loading = true;
		dlist_push_tail(&ep->loading, &lane->loading_node);
	}
}

static void
want_parking(OutboxEndpoint *ep, OutboxLane *lane)
{
	if (!lane->on_parking)
	{
		lane->on_parking = true;
		dlist_push_tail(&ep->parking, &lane->parking_node);
	}
}

static OutboxDelivery *
pop_waiting(OutboxEndpoint *ep, OutboxLane *lane)
{
	lane->nwaiting--;
	ep->nwaiting--;
	return dlist_container(OutboxDelivery, node,
						   dlist_pop_head_node(&lane->waiting));
}

/*
 * The lane has no live head: who is next?  Followers with a row in
 * outbox.parked are older than those without.
 */
static void
advance_lane(OutboxEndpoint *ep, OutboxLane *lane)
{
	if (lane->head != NULL || lane->blockers > 0)
		return;

	if (lane->nwaiting > 0)
	{
		OutboxDelivery *d = dlist_head_element(OutboxDelivery, node,
											   &lane->waiting);

		if (d->parked || lane->nparked == 0)
		{
			d = pop_waiting(ep, lane);
			lane->head = d;
			make_ready(ep, d);
			return;
		}
	}
	if (lane->nparked > 0)
		want_followers(ep, lane);
	else if (!lane->on_loading)
	{
		if (lane->on_parking)
			dlist_delete(&lane->parking_node);
		lanes_delete(ep->lanes, lane->key);
		pfree(lane->key);
		pfree(lane);
	}
}

/* Behind its lane's head, in the order of seq among those with a row. */
static void
make_waiting(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d)
{
	dlist_iter	iter;

	d->state = OUTBOX_DELIVERY_WAITING;
	lane->nwaiting++;
	ep->nwaiting++;
	if (d->parked)
	{
		dlist_foreach(iter, &lane->waiting)
		{
			OutboxDelivery *other = dlist_container(OutboxDelivery, node, iter.cur);

			if (!other->parked || other->seq > d->seq)
			{
				dlist_insert_before(iter.cur, &d->node);
				return;
			}
		}
	}
	dlist_push_tail(&lane->waiting, &d->node);
	if (lane->blockers > 0 && !d->parked)
		want_parking(ep, lane);
}

static OutboxDelivery *
make_delivery(OutboxEndpoint *ep, OutboxEvent *event, bool parked)
{
	OutboxDelivery *d = MemoryContextAllocZero(ep->cxt, sizeof(OutboxDelivery));

	d->endpoint = ep;
	d->event = event;
	d->seq = event->seq;
	d->parked = parked;
	event->page->refs++;
	if (!parked)
	{
		d->held = true;
		dlist_push_tail(&ep->held, &d->held_node);
		ep->nheld++;
	}
	return d;
}

/* Takes its place in its lane, or is ready at once. */
static void
place(OutboxEndpoint *ep, OutboxDelivery *d)
{
	const char *key = lane_key(ep, d->event->key);
	OutboxLane *lane;

	if (key == NULL)
	{
		make_ready(ep, d);
		return;
	}
	lane = get_lane(ep, key);
	d->lane = lane;
	make_waiting(ep, lane, d);
	advance_lane(ep, lane);
}

void
outbox_endpoint_admit(OutboxEndpoint *ep, OutboxEvent *event)
{
	place(ep, make_delivery(ep, event, false));
}

/* One delivery less that waits in the table only. */
static OutboxLane *
leave_table(OutboxEndpoint *ep, const char *key, bool was_retry)
{
	const char *k = lane_key(ep, key);
	OutboxLane *lane = k ? find_lane(ep, k) : NULL;

	if (was_retry)
	{
		ep->nretries_loading--;
		if (lane && lane->blockers > 0)
			lane->blockers--;
	}
	else
	{
		ep->nblocked--;
		if (lane && lane->nparked > 0)
			lane->nparked--;
	}
	return lane;
}

void
outbox_endpoint_load(OutboxEndpoint *ep, OutboxEvent *event, int attempts,
					 TimestampTz first_attempt_at, OutboxRedelivery redelivery,
					 bool was_retry)
{
	OutboxDelivery *d = make_delivery(ep, event, true);

	d->attempts = attempts;
	d->first_attempt_at = first_attempt_at;
	d->redelivery = redelivery;
	leave_table(ep, event->key, was_retry);
	place(ep, d);
}

/* As above, when the row or its event turned out to be gone. */
void
outbox_endpoint_load_failed(OutboxEndpoint *ep, const char *key, bool was_retry)
{
	OutboxLane *lane = leave_table(ep, key, was_retry);

	if (lane)
		advance_lane(ep, lane);
}

/* --------------------------------------------------------------- window */

/*
 * Reading stops while an endpoint could not send what it has.  With an open
 * breaker all it needs is a probe, when its time has come.
 */
bool
outbox_endpoint_wants_events(const OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->paused || ep->disabled || ep->dropped || ep->secret_missing)
		return false;
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		return now >= ep->retry_at && ep->window_count == 0 && ep->nready == 0 &&
			ep->nin_flight == 0 && ep->nretries + ep->nretries_loading == 0;
	return ep->window_count <= OUTBOX_WINDOW / 2;
}

bool
outbox_endpoint_push(OutboxEndpoint *ep, OutboxEvent *event)
{
	if (ep->window_count == OUTBOX_WINDOW)
		return false;
	if (ep->window_count == 0)
		outbox_cursor_set(&ep->frontier, event->page->done, event->page->under,
						  event->seq - 1);
	if (ep->window == NULL)
		ep->window = MemoryContextAlloc(ep->cxt,
										sizeof(OutboxEvent *) * OUTBOX_WINDOW);
	ep->window[(ep->window_start + ep->window_count++) % OUTBOX_WINDOW] = event;
	event->page->refs++;
	return true;
}

const OutboxCursor *
outbox_endpoint_frontier(OutboxEndpoint *ep, const OutboxCursor *head)
{
	if (ep->window_count == 0)
		outbox_cursor_copy(&ep->frontier, ep->attached ? head : &ep->cursor);
	return &ep->frontier;
}

void
outbox_endpoint_drop_window(OutboxEndpoint *ep, const OutboxCursor *head)
{
	outbox_endpoint_frontier(ep, head);
	while (ep->window_count > 0)
	{
		outbox_page_unref(ep->window[ep->window_start]->page);
		ep->window_start = (ep->window_start + 1) % OUTBOX_WINDOW;
		ep->window_count--;
	}
	ep->attached = false;
	outbox_cursor_copy(&ep->cursor, &ep->frontier);
	ep->drop_window = false;
}

/* The next event of the window takes its place.  False: not now. */
static bool
examine(OutboxEndpoint *ep)
{
	OutboxEvent *event;

	if (ep->window_count == 0 || ep->nwaiting >= OUTBOX_MAX_WAITING)
		return false;
	if (ep->ordering == OUTBOX_ORDER_STRICT && find_lane(ep, "") != NULL)
		return false;			/* one at a time: the position waits, too */

	event = ep->window[ep->window_start];
	ep->window_start = (ep->window_start + 1) % OUTBOX_WINDOW;
	ep->window_count--;
	ep->backlog--;
	ep->dirty = true;
	if (ep->frontier.under != event->page->under ||
		ep->frontier.done != event->page->done)
		outbox_cursor_set(&ep->frontier, event->page->done, event->page->under,
						  event->seq);
	ep->frontier.last_seq = event->seq;
	place(ep, make_delivery(ep, event, false));
	outbox_page_unref(event->page);
	return true;
}

/* -------------------------------------------------------------- sending */

/*
 * Full jitter: anything between nothing and the exponential bound, so that
 * what failed together does not come back together.  A floor of a tenth keeps
 * a retry from following its failure at once.
 */
int64
outbox_backoff(int attempt, int64 base, int64 max, double random)
{
	double		bound = (double) base;

	for (int i = 1; i < attempt && bound < (double) max; i++)
		bound *= 2;
	bound = Min(bound, (double) max);
	return (int64) (bound * (0.1 + 0.9 * random));
}

static int64
backoff(OutboxEndpoint *ep, int attempt)
{
	return outbox_backoff(attempt, ep->backoff_base, ep->backoff_max,
						  outbox_random_double());
}

/* After a slow-down slots double, at most once a second. */
static void
ramp_up(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->slots < ep->max_in_flight && now >= ep->ramp_at)
	{
		ep->slots = Min(ep->slots * 2, ep->max_in_flight);
		ep->ramp_at = now + USECS_PER_SEC;
	}
}

static void
refill_tokens(OutboxEndpoint *ep, TimestampTz now)
{
	double		most = Max(1.0, ep->rate_limit / 10);

	if (now > ep->tokens_at)
		ep->tokens = Min(most, ep->tokens + ep->rate_limit *
						 (now - ep->tokens_at) / USECS_PER_SEC);
	ep->tokens_at = now;
}

bool
outbox_endpoint_may_send(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->paused || ep->disabled || ep->dropped || ep->secret_missing)
		return false;
	if (now < ep->retry_at)
		return false;
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		return ep->nin_flight == 0;
	if (ep->nin_flight >= Min(ep->slots, ep->max_in_flight))
		return false;
	if (ep->rate_limit > 0)
	{
		refill_tokens(ep, now);
		if (ep->tokens < 1)
			return false;
	}
	return true;
}

OutboxDelivery *
outbox_endpoint_next(OutboxEndpoint *ep, TimestampTz now)
{
	if (!outbox_endpoint_may_send(ep, now))
		return NULL;

	for (;;)
	{
		OutboxDelivery *d;

		while (ep->nready == 0)
			if (!examine(ep))
				return NULL;

		d = dlist_container(OutboxDelivery, node, dlist_pop_head_node(&ep->ready));
		ep->nready--;
		d->state = OUTBOX_DELIVERY_IN_FLIGHT;
		dlist_push_tail(&ep->in_flight, &d->node);
		ep->nin_flight++;
		d->started_at = now;
		d->probe = (ep->breaker == OUTBOX_BREAKER_OPEN);

		if (d->event->expires_at <= now)
		{
			outbox_endpoint_dead(ep, d, "expired", "expires_at has passed", true);
			continue;
		}
		if (ep->rate_limit > 0)
			ep->tokens -= 1;
		return d;
	}
}

/* ------------------------------------------------------------- outcomes */

void
outbox_endpoint_put_back(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	ep->nin_flight--;
	ep->dirty = true;
	d->transfer = NULL;
	d->state = OUTBOX_DELIVERY_READY;
	dlist_push_head(&ep->ready, &d->node);
	ep->nready++;
}

static void
settle_later(OutboxEndpoint *ep, OutboxDelivery *d, OutboxVerdict verdict)
{
	release(d);
	d->verdict = verdict;
	d->state = OUTBOX_DELIVERY_SETTLING;
	dlist_push_tail(&ep->settling, &d->node);
	ep->nsettling++;
	ep->dirty = true;
}

static void
leave_flight(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	ep->nin_flight--;
	if (d->lane && d->lane->head == d)
		d->lane->head = NULL;
}

static void
set_error(OutboxEndpoint *ep, OutboxDelivery *d, const char *error)
{
	if (d->error)
		pfree(d->error);
	d->error = MemoryContextStrdup(ep->cxt, error);
	if (ep->last_error)
		pfree(ep->last_error);
	ep->last_error = MemoryContextStrdup(ep->cxt, error);
}

void
outbox_endpoint_dead(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason,
					 const char *error, bool skip)
{
	OutboxLane *lane = d->lane;

	leave_flight(ep, d);
	d->reason = reason;
	set_error(ep, d, error);
	ep->ndead++;
	settle_later(ep, d, OUTBOX_VERDICT_DEAD);
	if (lane == NULL)
		return;
	if (ep->block_on_dead && !skip)
	{
		lane->blockers++;
		want_parking(ep, lane);
	}
	else
		advance_lane(ep, lane);
}

static void
record_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now)
{
	int64		minute = now / USECS_PER_MINUTE;
	int			row = minute % OUTBOX_HISTOGRAM_MINUTES;
	int			bucket;

	if (ep->latency == NULL)
		ep->latency = MemoryContextAllocZero(ep->cxt, sizeof(OutboxHistogram));
	if (ep->latency->minute[row] != minute)
	{
		memset(ep->latency->count[row], 0, sizeof(ep->latency->count[row]));
		ep->latency->minute[row] = minute;
	}
	/* four buckets for each doubling, from 1 µs on */
	bucket = usec <= 1 ? 0 : (int) (log2((double) usec) * 4);
	ep->latency->count[row][Min(bucket, OUTBOX_HISTOGRAM_BUCKETS - 1)]++;
}

static void
count_success(OutboxEndpoint *ep, TimestampTz now)
{
	int64		second = now / USECS_PER_SEC;

	for (int64 s = Max(ep->recent_second + 1, second - 59); s <= second; s++)
		ep->recent[s % 60] = 0;
	ep->recent_second = Max(ep->recent_second, second);
	ep->recent[second % 60]++;
	ep->delivered++;
	ep->last_success_at = now;
}

static void
close_breaker(OutboxEndpoint *ep, TimestampTz now)
{
	ep->failures = 0;
	ep->failing_events = 0;
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
	{
		ep->breaker = OUTBOX_BREAKER_CLOSED;
		ep->openings = 0;
		ep->state_since = now;
		ep->slots = 1;
		ep->ramp_at = now + USECS_PER_SEC;
		ep->retry_at = 0;
		ereport(LOG, (errmsg("outbox endpoint \"%s\" answers again", ep->name)));
	}
}

static void
count_failure(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	bool		known = false;

	if (ep->breaker == OUTBOX_BREAKER_OPEN)
	{
		/* Only the probe says something; what was in flight before does not. */
		if (d->probe)
			ep->retry_at = Max(ep->retry_at, now + backoff(ep, ++ep->openings));
		return;
	}

	ep->failures++;
	for (int i = 0; i < ep->failing_events; i++)
		known = known || ep->failing_seq[i] == d->seq;
	if (!known && ep->failing_events < OUTBOX_BREAKER_EVENTS)
		ep->failing_seq[ep->failing_events++] = d->seq;
	if (ep->failures < OUTBOX_BREAKER_FAILURES ||
		ep->failing_events < OUTBOX_BREAKER_EVENTS)
		return;

	ep->breaker = OUTBOX_BREAKER_OPEN;
	ep->state_since = now;
	ep->openings = 1;
	ep->retry_at = Max(ep->retry_at, now + backoff(ep, 1));
	ep->drop_window = true;
	ereport(LOG, (errmsg("outbox endpoint \"%s\" is backing off: %d failures in a row, the last: %s",
						 ep->name, ep->failures, ep->last_error)));
}

/* Answers that speak for the whole endpoint, not for one event. */
static void
slow_down(OutboxEndpoint *ep, const OutboxOutcome *o, TimestampTz now)
{
	int64		wait = o->retry_after >= 0 ? o->retry_after : 0;

	/* seconds beyond any backoff_max would overflow */
	wait = Min(wait, ep->backoff_max / USECS_PER_SEC + 1) * USECS_PER_SEC;
	ep->retry_at = Max(ep->retry_at, now + Min(wait, ep->backoff_max));
	ep->slots = Max(1, Min(ep->slots, ep->max_in_flight) / 2);
	ep->ramp_at = now + USECS_PER_SEC;
}

static void
disable(OutboxEndpoint *ep, const OutboxOutcome *o, TimestampTz now)
{
	if (ep->disabled)
		return;
	ep->disabled = true;
	ep->state_dirty = true;
	ep->drop_window = true;
	ep->state_since = now;
	strlcpy(ep->reason, o->status == 410 ?
			"the receiver answered 410 Gone" :
			"the receiver answered webhook-delivery: disable",
			sizeof(ep->reason));
	ereport(LOG, (errmsg("outbox endpoint \"%s\" is disabled: %s",
						 ep->name, ep->reason),
				  errhint("outbox.resume_endpoint('%s') goes on from where it stopped.",
						  ep->name)));
}

static void
done_badly(OutboxEndpoint *ep, OutboxDelivery *d, const OutboxOutcome *o,
		   TimestampTz now)
{
	bool		retry_by_endpoint = o->status == 429 || o->status == 502 ||
		o->status == 503 || o->status == 504;
	bool		gone = o->status == 410 || o->disable;
	OutboxLane *lane = d->lane;
	int64		wait;

	ep->failed_attempts++;
	if (d->first_attempt_at == 0)
		d->first_attempt_at = d->started_at;
	d->last_status = o->status;

	/* A probe, and the answer that disables, use up no attempt. */
	if (!d->probe && !gone)
		d->attempts++;

	set_error(ep, d, o->error);
	count_failure(ep, d, now);
	if (retry_by_endpoint)
		slow_down(ep, o, now);
	if (gone)
		disable(ep, o, now);

	if (!gone)
	{
		const char *reason = NULL;

		if (o->abort_message)
			reason = "aborted by receiver";
		else if (ep->max_attempts > 0 && d->attempts >= ep->max_attempts)
			reason = "max_attempts";
		else if (now - d->first_attempt_at >= ep->max_age)
			reason = "max_age";
		if (reason)
		{
			ereport(LOG, (errmsg("outbox delivery of event %s to \"%s\" is dead: %s",
								 d->event->id_text, ep->name, reason)));
			outbox_endpoint_dead(ep, d, reason, o->error, false);
			return;
		}
	}

	wait = gone ? 0 : backoff(ep, Max(d->attempts, 1));
	if (o->retry_after > 0)
	{
		int64		floor = Min(o->retry_after, ep->backoff_max / USECS_PER_SEC + 1);

		wait = Max(wait, Min(floor * USECS_PER_SEC, ep->backoff_max));
	}
	d->next_attempt_at = Min(now + wait, d->first_attempt_at + ep->max_age);
	leave_flight(ep, d);
	settle_later(ep, d, OUTBOX_VERDICT_RETRY);
	if (lane)
	{
		lane->blockers++;
		want_parking(ep, lane);
	}
}

void
outbox_endpoint_done(OutboxEndpoint *ep, OutboxDelivery *d,
					 const OutboxOutcome *o, TimestampTz now)
{
	OutboxLane *lane = d->lane;

	ep->last_active_at = now;
	ep->dirty = true;
	if (o->status < 200 || o->status > 299)
	{
		done_badly(ep, d, o, now);
		return;
	}

	leave_flight(ep, d);
	count_success(ep, now);
	if (d->attempts == 0 && d->redelivery == OUTBOX_FIRST_DELIVERY)
		record_latency(ep, now - d->event->created_at, now);
	close_breaker(ep, now);
	ramp_up(ep, now);
	if (d->parked)
		settle_later(ep, d, OUTBOX_VERDICT_DELIVERED);
	else
		free_delivery(d);
	if (lane)
		advance_lane(ep, lane);
}

/* -------------------------------------------------- retries and parking */

static void
push_retry(OutboxEndpoint *ep, int64 seq, TimestampTz due)
{
	OutboxRetry *retry = MemoryContextAlloc(ep->cxt, sizeof(OutboxRetry));

	retry->seq = seq;
	retry->due = due;
	pairingheap_add(ep->retries, &retry->node);
	ep->nretries++;
}

void
outbox_endpoint_add_retry(OutboxEndpoint *ep, int64 seq, TimestampTz due,
						  const char *key)
{
	key = lane_key(ep, key);
	if (key)
		get_lane(ep, key)->blockers++;
	push_retry(ep, seq, due);
}

void
outbox_endpoint_add_followers(OutboxEndpoint *ep, const char *key, int64 n)
{
	const char *k = lane_key(ep, key);
	OutboxLane *lane = get_lane(ep, k ? k : key);

	lane->nparked += n;
	ep->nblocked += n;
	advance_lane(ep, lane);
}

/* No row was found where some were expected: they are not written yet. */
void
outbox_endpoint_no_followers(OutboxEndpoint *ep, OutboxLane *lane)
{
	if (ep->nsettling == 0)
	{
		ep->nblocked -= lane->nparked;
		lane->nparked = 0;
		advance_lane(ep, lane);
	}
}

void
outbox_endpoint_add_blocker(OutboxEndpoint *ep, const char *key)
{
	key = lane_key(ep, key);
	if (key)
		get_lane(ep, key)->blockers++;
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
		OutboxRetry *retry = pairingheap_container(OutboxRetry, node,
												   pairingheap_remove_first(ep->retries));

		seqs[n++] = retry->seq;
		ep->nretries--;
		ep->nretries_loading++;
		pfree(retry);
	}
	return n;
}

static void
park_lane(OutboxEndpoint *ep, OutboxLane *lane)
{
	while (lane->nwaiting > 0)
	{
		OutboxDelivery *d = pop_waiting(ep, lane);

		lane->nparked++;
		ep->nblocked++;
		d->lane = NULL;
		if (d->parked)
			free_delivery(d);	/* its row says 'blocked' already */
		else
			settle_later(ep, d, OUTBOX_VERDICT_BLOCKED);
	}
}

/*
 * Followers that would wait long leave memory, and no longer hold the
 * position: those behind a parked head, and the longest lanes when followers
 * fill their share of memory, so that one hot key is no dam for the others.
 */
void
outbox_endpoint_park_followers(OutboxEndpoint *ep)
{
	while (!dlist_is_empty(&ep->parking))
	{
		OutboxLane *lane = dlist_container(OutboxLane, parking_node,
										   dlist_pop_head_node(&ep->parking));

		lane->on_parking = false;
		if (lane->blockers > 0)
			park_lane(ep, lane);
	}

	if (ep->nwaiting >= OUTBOX_MAX_WAITING)
	{
		lanes_iterator it;
		LaneEntry  *entry;

		lanes_start_iterate(ep->lanes, &it);
		while ((entry = lanes_iterate(ep->lanes, &it)) != NULL)
			if (entry->lane->nwaiting > LONG_LANE)
				park_lane(ep, entry->lane);
	}
}

void
outbox_endpoint_settled(OutboxEndpoint *ep)
{
	while (!dlist_is_empty(&ep->settling))
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node,
											dlist_pop_head_node(&ep->settling));

		ep->nsettling--;
		if (d->verdict == OUTBOX_VERDICT_RETRY)
			push_retry(ep, d->seq, d->next_attempt_at);
		else if (d->verdict == OUTBOX_VERDICT_BLOCKED)
		{
			/* Its turn may have come before its row could be read. */
			const char *key = lane_key(ep, d->event->key);
			OutboxLane *lane = key ? find_lane(ep, key) : NULL;

			if (lane)
				advance_lane(ep, lane);
		}
		free_delivery(d);
	}
	ep->dirty = false;
}

/* ------------------------------------------------------------- watching */

/*
 * A completion makes the worker look at its endpoint anyway: what waits for a
 * slot needs no time of its own.
 */
TimestampTz
outbox_endpoint_next_time(OutboxEndpoint *ep, TimestampTz now)
{
	TimestampTz t = DT_NOEND;

	if (ep->paused || ep->disabled || ep->dropped || ep->secret_missing || ep->recreate)
		return t;
	if (ep->retry_at > now)
		return ep->retry_at;
	if (ep->breaker == OUTBOX_BREAKER_OPEN ||
		ep->nin_flight >= Min(ep->slots, ep->max_in_flight))
		return t;
	if (!pairingheap_is_empty(ep->retries) && ep->nready < OUTBOX_RETRIES_AT_ONCE)
		t = pairingheap_container(OutboxRetry, node,
								  pairingheap_first(ep->retries))->due;
	if (ep->rate_limit > 0 && (ep->nready > 0 || ep->window_count > 0 || t <= now))
	{
		refill_tokens(ep, now);
		if (ep->tokens < 1)
			t = now + (int64) ((1 - ep->tokens) / ep->rate_limit * USECS_PER_SEC) + 1;
	}
	return t;
}

static double
percentile(const uint32 *counts, int64 total, double p)
{
	int64		seen = 0;

	for (int i = 0; i < OUTBOX_HISTOGRAM_BUCKETS; i++)
	{
		seen += counts[i];
		if (seen >= p * total)
			return exp2((i + 0.5) / 4) / 1000.0;
	}
	return -1;
}

static void
fill_latency(OutboxEndpoint *ep, TimestampTz now, OutboxStats *s)
{
	uint32		sum[OUTBOX_HISTOGRAM_BUCKETS] = {0};
	int64		minute = now / USECS_PER_MINUTE;
	int64		total = 0;

	s->latency_p50_ms = s->latency_p95_ms = s->latency_p99_ms = -1;
	if (ep->latency == NULL)
		return;
	for (int row = 0; row < OUTBOX_HISTOGRAM_MINUTES; row++)
	{
		if (ep->latency->minute[row] <= minute - OUTBOX_HISTOGRAM_MINUTES)
			continue;
		for (int i = 0; i < OUTBOX_HISTOGRAM_BUCKETS; i++)
		{
			sum[i] += ep->latency->count[row][i];
			total += ep->latency->count[row][i];
		}
	}
	if (total == 0)
		return;
	s->latency_p50_ms = percentile(sum, total, 0.50);
	s->latency_p95_ms = percentile(sum, total, 0.95);
	s->latency_p99_ms = percentile(sum, total, 0.99);
}

static OutboxEndpointState
endpoint_state(const OutboxEndpoint *ep)
{
	if (ep->disabled || ep->secret_missing)
		return OUTBOX_ENDPOINT_DISABLED;
	if (ep->paused)
		return OUTBOX_ENDPOINT_PAUSED;
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		return OUTBOX_ENDPOINT_BACKING_OFF;
	return OUTBOX_ENDPOINT_ACTIVE;
}

/* The oldest event that is neither delivered nor parked, as far as known. */
static TimestampTz
oldest_pending(OutboxEndpoint *ep)
{
	TimestampTz oldest = DT_NOEND;
	dlist_iter	iter;

	dlist_foreach(iter, &ep->in_flight)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		oldest = Min(oldest, d->event->created_at);
	}
	dlist_foreach(iter, &ep->ready)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		oldest = Min(oldest, d->event->created_at);
	}
	if (ep->window_count > 0)
		oldest = Min(oldest, ep->window[ep->window_start]->created_at);
	else if (ep->backlog > 0 && ep->frontier.done)
		oldest = Min(oldest, ep->frontier.done->taken_at);
	return oldest == DT_NOEND ? 0 : oldest;
}

void
outbox_endpoint_fill_stats(OutboxEndpoint *ep, TimestampTz now, OutboxStats *s)
{
	int64		sum = 0;
	int64		second = now / USECS_PER_SEC;

	memset(s, 0, sizeof(*s));
	s->key.endpoint_id = ep->id;
	s->state = endpoint_state(ep);
	s->state_since = ep->state_since;
	s->pending = Max(ep->backlog, 0) + ep->nready + ep->nwaiting;
	s->pending_exact = ep->counted;
	s->processing = ep->nin_flight;
	s->retrying = ep->nretries + ep->nretries_loading;
	for (dlist_node *n = ep->settling.head.next;
		 n != NULL && n != &ep->settling.head; n = n->next)
		if (dlist_container(OutboxDelivery, node, n)->verdict == OUTBOX_VERDICT_RETRY)
			s->retrying++;
	s->blocked = ep->nblocked;
	s->dead = ep->ndead;
	s->delivered = ep->delivered;
	s->failed_attempts = ep->failed_attempts;
	s->oldest_pending_at = oldest_pending(ep);
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		s->next_attempt_at = ep->retry_at;
	else if (!pairingheap_is_empty(ep->retries))
		s->next_attempt_at = pairingheap_container(OutboxRetry, node,
												   pairingheap_first(ep->retries))->due;
	s->last_success_at = ep->last_success_at;
	for (int i = 0; i < 60; i++)
	{
		/* slots of seconds that have passed since are stale */
		int64		at = ep->recent_second - ((ep->recent_second - i) % 60 + 60) % 60;

		if (at > second - 60)
			sum += ep->recent[i];
	}
	s->rate_per_s = sum / 60.0;
	fill_latency(ep, now, s);
	if (ep->secret_missing)
		strlcpy(s->reason, "secret missing", sizeof(s->reason));
	else if (ep->disabled || ep->paused)
		strlcpy(s->reason, ep->reason, sizeof(s->reason));
	else if (ep->breaker == OUTBOX_BREAKER_OPEN && ep->last_error)
		strlcpy(s->reason, ep->last_error, sizeof(s->reason));
	if (ep->last_error)
		strlcpy(s->last_error, ep->last_error, sizeof(s->last_error));
}
