/*
 * dispatch.c
 *	  Owns the way between an endpoint and its transport: deliveries become
 *	  requests, and answers become outcomes.
 */
#include "base/outbox.h"

#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/crash_point.h"
#include "base/encoding.h"
#include "base/memory.h"
#include "base/settings.h"
#include "endpoint/batch.h"
#include "endpoint/outcome.h"
#include "endpoint/pace.h"
#include "endpoint/retries.h"
#include "endpoint/status.h"
#include "endpoint/window.h"
#include "log/payload.h"
#include "log/step.h"
#include "store/attempts.h"
#include "store/settle.h"
#include "transport/message.h"
#include "transport/sinks.h"
#include "worker/busy.h"
#include "worker/clock.h"
#include "worker/dispatch.h"
#include "worker/loop.h"
#include "worker/roster.h"

/* Bytes that a batch takes besides its body.  Its answer is kept whole. */
#define BATCH_BYTES(transport) ((transport)->memory + OUTBOX_ANSWER_MAX)

/*
 * µs for which requests are started in one round of the loop.  So answers and new events
 * of the others never wait until all slots are filled.
 */
#define ROUND_TIME 1000

static OutboxEnded ended;
static size_t	   requests_account;

static struct
{
	TimestampTz end; /* 0: no request was started in it */
	bool		over;
} this_round;

/* ------------------------------------------------------------ the round */

void
outbox_dispatch_new_round(void)
{
	this_round.end = 0;
	this_round.over = false;
}

bool
outbox_dispatch_round_is_over(void)
{
	return this_round.over;
}

static void
count_start(TimestampTz now)
{
	if (this_round.end == 0)
		this_round.end = now + ROUND_TIME;
	this_round.over = now >= this_round.end;
}

/* ----------------------------------------------------- limits of tenants */

/*
 * Endpoints that the limits of their tenant keep from sending wait on its list.  The
 * first one sends when the limits allow it, and then the next one is the first.
 */
static OutboxEndpoint *
first_of_tenant(OutboxTenant *t)
{
	if (t->limits == NULL || dlist_is_empty(&t->limits->waiting))
		return NULL;
	return outbox_listed(tenant_node, dlist_head_node(&t->limits->waiting));
}

static void
next_of_tenant(OutboxTenant *t)
{
	OutboxEndpoint *ep = first_of_tenant(t);

	if (ep)
		outbox_busy_add(ep);
}

static void
wait_for_tenant(OutboxEndpoint *ep)
{
	if (ep->lists->waits_for_tenant)
		return;
	ep->lists->waits_for_tenant = true;
	dlist_push_tail(&ep->tenant->limits->waiting, &ep->lists->tenant_node);
	if (!ep->lists->busy)
		outbox_busy_add(ep); /* to find when it may send */
}

void
outbox_dispatch_leave_tenant(OutboxEndpoint *ep)
{
	if (!ep->lists->waits_for_tenant)
		return;
	ep->lists->waits_for_tenant = false;
	dlist_delete(&ep->lists->tenant_node);
	next_of_tenant(ep->tenant);
}

/*
 * True if the endpoint can send once its tenant allows it.  A retry that is due is loaded
 * then.
 */
static bool
has_something_for_tenant(OutboxEndpoint *ep, TimestampTz now)
{
	return outbox_status_is_ready(ep, now) &&
		(outbox_window_has_something(ep) ||
		 (outbox_retries_is_due(ep, now) && !ep->member.recreate &&
		  !outbox_step_held(OUTBOX_STEP_READ, ep->id)));
}

/*
 * True if the endpoint may send as far as its tenant is concerned.  One that could not
 * send anyway does not wait, because all behind it would.
 */
static bool
is_turn_of_tenant(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxTenant *t = ep->tenant;

	if (t && outbox_tenant_is_limited(t) && has_something_for_tenant(ep, now) &&
		(!outbox_tenant_allows(t, now) ||
		 (first_of_tenant(t) != NULL && first_of_tenant(t) != ep)))
	{
		wait_for_tenant(ep);
		return false;
	}
	outbox_dispatch_leave_tenant(ep);
	return true;
}

/*
 * Returns the time at which the request starts.  That of the round may be before the event
 * was emitted.
 */
static TimestampTz
begin_flight(OutboxEndpoint *ep, size_t request_bytes, size_t body_bytes)
{
	bool		only = ep->queue->nin_flight == 1;
	TimestampTz now = GetCurrentTimestamp();

	count_start(now);
	outbox_loop.traffic.in_flight++;
	if (ep->tenant)
		outbox_tenant_begin(ep->tenant, only);
	if (only && (ep->tenant == NULL || ep->tenant->nsending == 1))
		outbox_loop.traffic.nsending++;
	ep->queue->flight_bytes += request_bytes + body_bytes;
	outbox_memory_account(&requests_account, requests_account + request_bytes);
	return now;
}

static void
end_flight(OutboxEndpoint *ep, size_t request_bytes, size_t body_bytes)
{
	bool only = ep->queue->nin_flight == 1;

	outbox_loop.traffic.in_flight--;
	if (ep->tenant)
		outbox_tenant_end(ep->tenant, only);
	ep->queue->flight_bytes -= request_bytes + body_bytes;
	if (only && (ep->tenant == NULL || ep->tenant->nsending == 0))
		outbox_loop.traffic.nsending--;
	if (ep->tenant)
		next_of_tenant(ep->tenant);
	outbox_memory_account(&requests_account, requests_account - request_bytes);
}

static void
end_single_flight(OutboxDelivery *d)
{
	OutboxEvent *sent = d->sent;

	end_flight(d->endpoint, d->transport->memory, d->sent_len);
	d->sent = NULL;
	outbox_page_unref(sent->page);
}

/* The delivery is not sent now, so it does not count for rate_limit either. */
static void
not_now(OutboxEndpoint *ep, OutboxDelivery *d)
{
	outbox_pace_return_token(&ep->pace);
	outbox_endpoint_put_back(ep, d);
}

static void
batch_done(OutboxBatch *b, const OutboxOutcome *outcome, TimestampTz now)
{
	outbox_loop.traffic.unsettled += b->n;
	outbox_batch_judge(b, outcome);
	for (int i = 0; i < b->n; i++)
	{
		const char *error = outbox_batch_error(b, i);

		outbox_loop.traffic.delivered += error == NULL;
		outbox_attempt_ended(b->members[i].delivery, outcome, error, i == 0);
	}
	OUTBOX_CRASH_POINT("batch.judged");
	outbox_batch_done(b, outcome, now);
}

/*
 * A request has ended.  'arg' is the delivery that was sent alone, or the first
 * member of a batch.
 */
static void
done(void *arg, const OutboxOutcome *outcome)
{
	OutboxDelivery *d = arg;
	OutboxEndpoint *ep = d->endpoint;
	TimestampTz		now = GetCurrentTimestamp();
	OutboxOutcome	clean;

	/* If the clock was set forward meanwhile, the failure is not judged by that. */
	if (d->batch || outcome->result > OUTBOX_RESULT_UNKNOWN)
		(void) outbox_clock_went_back(now);
	OUTBOX_CRASH_POINT("answer.arrived");
	if (outcome->result == OUTBOX_RESULT_UNAVAILABLE)
	{
		end_single_flight(d);
		not_now(ep, d);
		outbox_loop.traffic.refill_all = true; /* the link may be up again already */
		return;
	}
	if (outcome->error[0])
	{
		/* From here the words go into tables, views, events and the log. */
		clean = *outcome;
		outbox_foreign_words(clean.error);
		outcome = &clean;
	}
	if (d->batch)
	{
		end_flight(ep, BATCH_BYTES(d->batch->transport), d->batch->body.len);
		batch_done(d->batch, outcome, now);
	}
	else
	{
		bool good = outcome->result <= OUTBOX_RESULT_UNKNOWN;

		end_single_flight(d);
		outbox_loop.traffic.unsettled++;
		d->transfer = NULL;
		outbox_loop.traffic.delivered += good;
		outbox_attempt_ended(d, outcome, good ? NULL : outcome->error, true);
		outbox_outcome_done(ep, d, outcome, now);
	}
	OUTBOX_CRASH_POINT("answer.noted");
	ended(ep, now);
	if (outbox_turns_of_sending() > 0 || (ep->tenant && first_of_tenant(ep->tenant)))
		return;

	/*
	 * Nothing is read from the log here.  The loop sends events whose payload has
	 * to be read first.
	 */
	outbox_payload_readable = false;
	outbox_dispatch_fill(ep, now, outbox_worker_max_in_flight);
	outbox_payload_readable = true;
	outbox_loop.traffic.refill_all = outbox_loop.traffic.refill_all ||
		outbox_payload_wanted;
	outbox_payload_wanted = false;
}

void
outbox_dispatch_flush(void)
{
	for (int i = 0; i < outbox_ntransports; i++)
		if (outbox_transports[i]->flush)
			outbox_transports[i]->flush();
}

void
outbox_dispatch_init(OutboxEnded callback)
{
	ended = callback;
	outbox_payload_before_large = outbox_dispatch_flush;
	outbox_sinks_load(done);
}

/*
 * Sends a delivery, or makes it dead if it can never be sent.  False: it cannot be
 * sent now, and is ready again.
 */
static bool
send(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	const OutboxTransport *transport = ep->config.target.transport;
	size_t				   cost = transport->memory +
		outbox_payload_cost(d->event, ep->config.request.format);
	bool			gone = false;
	OutboxEvent	   *event = NULL;
	OutboxTransfer *t = NULL;
	OutboxMessage	message = {0};
	const char	   *problem;

	if (outbox_endpoint_has_memory(ep, ep->queue->nin_flight - 1, cost, now))
		event = outbox_payload_load(d->event, ep->config.request.format, &gone);
	if (gone)
	{
		outbox_outcome_dead(ep, d, "event is gone", "the event is no longer in the log");
		outbox_loop.traffic.unsettled++;
		return true;
	}
	if (event)
		t = transport->acquire();
	if (t == NULL)
	{
		if (event)
			outbox_page_unref(event->page);
		not_now(ep, d);
		return false;
	}
	message.body = outbox_request_body(event, ep->config.request.format,
									   &message.body_len);
	outbox_payload_used(event);
	if (transport->headers)
		problem = outbox_request_headers(transport->headers(t), event,
										 &ep->config.request, d->attempts + 1,
										 d->redelivery, timestamptz_to_time_t(now),
										 message.body, message.body_len);
	else
		problem = outbox_message_fill(&message, event, &ep->config.request,
									  d->attempts + 1, d->redelivery,
									  transport->attribute_prefix);
	if (problem)
	{
		transport->release(t);
		outbox_page_unref(event->page);
		outbox_outcome_dead(ep, d, "invalid event", problem);
		outbox_loop.traffic.unsettled++;
		return true;
	}
	d->transport = transport;
	d->transfer = t;
	d->sent = event;
	d->sent_len = message.body_len;
	d->started_at = begin_flight(ep, transport->memory, message.body_len);
	OUTBOX_CRASH_POINT("send.begin");
	transport->start(t, &ep->config.target, ep->link->handle, &message, d);
	if (ep->link->state == OUTBOX_LINK_PROBING)
		ep->link->state = OUTBOX_LINK_DOWN; /* until links.c has asked again */
	OUTBOX_CRASH_POINT("send.started");
	return true;
}

static bool
send_batch(OutboxBatch *b, TimestampTz now)
{
	OutboxEndpoint		  *ep = b->endpoint;
	const OutboxTransport *transport = ep->config.target.transport;
	OutboxTransfer		  *t = transport->acquire();
	OutboxMessage		   message = {0};
	const char			  *problem;

	if (t == NULL)
	{
		outbox_batch_put_back(b);
		return false;
	}
	problem = outbox_request_batch_headers(transport->headers(t), b->id,
										   &ep->config.request, b->attempt,
										   timestamptz_to_time_t(now), b->body.bytes,
										   b->body.len);
	if (problem)
	{
		transport->release(t);
		outbox_loop.traffic.unsettled += b->n;
		outbox_batch_dead(b, "invalid event", problem);
		return true;
	}
	b->transport = transport;
	b->transfer = t;
	now = begin_flight(ep, BATCH_BYTES(transport), b->body.len);
	for (int i = 0; i < b->n; i++)
		b->members[i].delivery->started_at = now;
	message.body = b->body.bytes;
	message.body_len = b->body.len;
	transport->start(t, &ep->config.target, ep->link->handle, &message,
					 b->members[0].delivery);
	OUTBOX_CRASH_POINT("batch.started");
	return true;
}

/* Endpoints that lack a slot, memory or time get what others give back, in turn. */
static void
wait_if(bool wants, OutboxEndpoint *ep)
{
	OutboxTurn turn = ep->queue->nin_flight == 0 && this_round.over ? OUTBOX_TURN_FIRST :
																	  OUTBOX_TURN_SEND;

	if (!wants)
	{
		outbox_turn_remove(turn, ep);
		return;
	}
	outbox_turn_add(turn, ep);
	if (this_round.over)
		outbox_loop.traffic.refill_all = true;
}

bool
outbox_dispatch_may_fill(void)
{
	/*
	 * What is not settled is sent again after a crash, so its number is bounded
	 * while a settle is held up.
	 */
	return outbox_loop.traffic.sending_allowed &&
		outbox_loop.traffic.unsettled < 2 * OUTBOX_SETTLE_AFTER;
}

/*
 * Sends the next request of an endpoint.  False: nothing was sent.  '*nothing' is
 * true if there was nothing to send.
 */
static bool
send_next(OutboxEndpoint *ep, TimestampTz now, bool *nothing)
{
	OutboxDelivery *d;
	OutboxBatch	   *b;

	if (ep->config.batch_size > 1)
	{
		b = outbox_batch_next(ep, BATCH_BYTES(ep->config.target.transport), now, nothing);
		return b != NULL && send_batch(b, now);
	}
	d = outbox_endpoint_next(ep, now);
	*nothing = d == NULL;
	return d != NULL && send(ep, d, now);
}

/* µs after which a transport is asked again whether it can use more. */
#define ASK_AGAIN (10 * 1000)

/* How many requests of the endpoint its transport can use; 'more': it has more. */
static int
width_of(const OutboxEndpoint *ep, bool more)
{
	const OutboxTarget	  *target = &ep->config.target;
	const OutboxTransport *transport = target->transport; /* NULL: it cannot be used */

	return transport && transport->width ? transport->width(target, more) : INT_MAX;
}

void
outbox_dispatch_fill(OutboxEndpoint *ep, TimestampTz now, int most)
{
	int width;

	/* the part of the worker's memory for 'most' requests */
	size_t bytes = outbox_memory_limit() / outbox_worker_max_in_flight * most;

	if (outbox_window_has_something(ep) &&
		(!outbox_dispatch_may_fill() || ep->member.recreate))
		return;
	ep->lists->touched = false;
	if (!is_turn_of_tenant(ep, now))
		return;
	width = width_of(ep, false);
	for (;;)
	{
		bool nothing;

		/* Each endpoint has one slot, whatever the others use. */
		if (this_round.over ||
			(ep->queue->nin_flight > 0 &&
			 (ep->queue->nin_flight >= most ||
			  (most < outbox_worker_max_in_flight && ep->queue->flight_bytes > bytes) ||
			  outbox_loop.traffic.in_flight >= outbox_worker_max_in_flight)))
		{
			wait_if(outbox_window_has_something(ep) && outbox_status_may_send(ep, now),
					ep);
			break;
		}
		if (ep->queue->nin_flight >= width)
		{
			if (outbox_window_has_something(ep) && outbox_status_may_send(ep, now))
				(void) width_of(ep, true);
			wait_if(false, ep);
			break;
		}
		if (send_next(ep, now, &nothing))
			continue;
		wait_if(!nothing, ep);
		break;
	}
	if (ep->tenant && !outbox_tenant_allows(ep->tenant, now) &&
		has_something_for_tenant(ep, now))
		wait_for_tenant(ep);

	/* How far it has read is stored in time, whenever the answer comes. */
	if (ep->place.moved && !ep->lists->behind)
		outbox_settle_add(&outbox_loop.to_settle, ep);

	/*
	 * It had its turn, and what holds it back now may end at a time.  What could never be
	 * sent is to be stored.
	 */
	if (!ep->lists->busy &&
		(outbox_settle_wants(ep) ||
		 (outbox_window_has_something(ep) && !outbox_turn_is_of_sending(ep))))
		outbox_busy_add(ep);
}

/* What has nothing in flight does not overtake what waits for time in a round. */
void
outbox_dispatch_offer(OutboxEndpoint *ep, TimestampTz now, int most)
{
	if (outbox_loop.turns[OUTBOX_TURN_FIRST] == 0 || ep->queue->nin_flight > 0 ||
		!outbox_window_has_something(ep))
	{
		outbox_dispatch_fill(ep, now, most);
		return;
	}
	ep->lists->touched = false;
	outbox_turn_add(OUTBOX_TURN_FIRST, ep);
}

static OutboxDelivery *
started_before(OutboxEndpoint *ep, TimestampTz before)
{
	dlist_iter iter;

	dlist_foreach(iter, &ep->queue->in_flight)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		if (d->started_at < before)
			return d;
	}
	return NULL;
}

void
outbox_dispatch_cancel(OutboxEndpoint *ep, TimestampTz before)
{
	OutboxDelivery *d;

	while ((d = started_before(ep, before)) != NULL)
	{
		if (d->batch)
		{
			end_flight(ep, BATCH_BYTES(d->batch->transport), d->batch->body.len);
			d->batch->transport->cancel(d->batch->transfer);
			outbox_batch_put_back(d->batch);
		}
		else
		{
			d->transport->cancel(d->transfer);
			end_single_flight(d);
			outbox_endpoint_put_back(ep, d);
		}
	}
}

/*
 * What waits for a slot needs no time, because the worker examines the endpoint
 * whenever a request ends.
 */
TimestampTz
outbox_dispatch_next_time(OutboxEndpoint *ep, TimestampTz now)
{
	TimestampTz t = DT_NOEND;

	if (outbox_status_is_off(ep) || ep->link->state == OUTBOX_LINK_DOWN ||
		ep->member.recreate || ep->status.unstorable)
		return t;
	if (ep->pace.retry_at > now)
		return ep->pace.retry_at;
	if (ep->lists->waits_for_tenant)
	{
		/* If it waits for a slot, or for its turn, it is told. */
		if (first_of_tenant(ep->tenant) == ep)
			t = outbox_tenant_token_at(ep->tenant, now);
		return t > now ? t : DT_NOEND;
	}
	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN ||
		!outbox_pace_has_slot(&ep->pace, ep->queue->nin_flight))
		return t;
	if (ep->queue->nin_flight >= width_of(ep, false))
		return outbox_window_has_something(ep) ? now + ASK_AGAIN : t;
	if (!outbox_step_held(OUTBOX_STEP_READ, ep->id)) /* else they cannot be loaded */
		t = outbox_retries_due(ep);
	t = Min(t, outbox_batch_due(ep, now));
	if (outbox_window_has_something(ep) || t <= now)
	{
		TimestampTz token_at = outbox_pace_token_at(&ep->pace, now);

		if (token_at > now)
			t = token_at;
	}
	return t;
}
