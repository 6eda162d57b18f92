/*
 * dispatch.c
 *	  Owns the way between an endpoint and its transport: deliveries become
 *	  requests, and answers become outcomes.
 */
#include "base/outbox.h"

#include "base/compat.h"
#include "base/crash_point.h"
#include "base/encoding.h"
#include "base/memory.h"
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
#include "store/unsettled.h"
#include "transport/message.h"
#include "transport/sinks.h"
#include "worker/busy.h"
#include "worker/clock.h"
#include "worker/dispatch.h"
#include "worker/judge.h"
#include "worker/loop.h"
#include "worker/slots.h"
#include "worker/watchdog.h"

/* Bytes that a batch takes besides its body.  Its answer is kept whole. */
#define BATCH_BYTES(transport) ((transport)->memory + OUTBOX_ANSWER_MAX)

/*
 * µs for which requests are started in one round of the loop while answers come, and then
 * once more.  So answers and new events of the others never wait until all slots are filled.
 * Requests get as long as commands and reading took in the round, so they do not fall behind.
 */
#define ROUND_TIME 1000
#define ROUND_TIME_MAX (100 * 1000)

/*
 * A delivery that could not be sent for a lack of our own is tried again so many µs
 * later, and one such request in EACH_LACK µs.  So a lack costs little CPU, however many
 * requests meet it.
 */
#define AFTER_LACK (100 * 1000)
#define EACH_LACK 2000

/* After requests that the receiver did not take, the endpoint waits for so many µs each. */
#define EACH_LOST 20000

/*
 * µs of slot-time that a request counts at least.  To begin one takes time of the round,
 * however soon it ends.  Thousands of endpoints whose receivers are down would otherwise
 * have used less than one whose receiver answers, and all come before it.
 */
#define REQUEST_COUNTS (5 * 1000)
#define FAILURE_COUNTS USECS_PER_SEC

#define SIGNED_SOON (16 * 1024) /* bytes of a body that take little time to sign */

static OutboxEnded ended;
static size_t	   requests_account;

static struct
{
	TimestampTz end; /* 0: no request was started in it */
	bool		over;
	int64		time; /* µs from the first request on */
} this_round;

/* ------------------------------------------------------------ the round */

static void
begin_requests(int64 usec)
{
	this_round.end = 0;
	this_round.over = false;
	this_round.time = Min(Max(usec, ROUND_TIME), ROUND_TIME_MAX);
}

void
outbox_dispatch_new_round(void)
{
	begin_requests(0);
}

static void
count_start(TimestampTz now)
{
	if (this_round.end == 0)
		this_round.end = now + this_round.time;
	this_round.over = now >= this_round.end;
}

static void
begin_flight(OutboxEndpoint *ep, size_t request_bytes, size_t body_len, TimestampTz now)
{
	count_start(now);
	outbox_slots_begin(ep, body_len, now);
	outbox_memory_account(&requests_account, requests_account + request_bytes);
}

/* The request of the delivery, or of its batch, is no more. */
static void
end_flight(OutboxDelivery *d, int64 least, TimestampTz now)
{
	OutboxBatch *b = d->batch;
	size_t		 request_bytes = b ? BATCH_BYTES(b->transport) : d->transport->memory;
	TimestampTz	 until = outbox_slots_end(d->endpoint, least, d->started_at, now);

	outbox_memory_account(&requests_account, requests_account - request_bytes);
	if (until > now)
	{
		/* the others come first (slots.h) */
		outbox_pace_slow_down(&d->endpoint->pace, -1, now);
		outbox_pace_wait(&d->endpoint->pace, until);
	}
	if (b)
		return;
	outbox_page_unref(d->sent->page);
	d->sent = NULL;
}

/* The request has ended, or is cancelled: its deliveries are where they were before. */
static void
put_back(OutboxDelivery *d, TimestampTz now)
{
	end_flight(d, 0, now);
	if (d->batch)
		outbox_batch_put_back(d->batch);
	else
		outbox_endpoint_put_back(d->endpoint, d);
}

/*
 * A probe that was not sent is no probe: the breaker stays as it is, and the next one is
 * not due any later.
 */
static void
not_sent(OutboxDelivery *d, const OutboxOutcome *o, TimestampTz now)
{
	static TimestampTz until;
	OutboxEndpoint	  *ep = d->endpoint;

	for (int i = 0; i < (d->batch ? d->batch->n : 1); i++)
		outbox_attempts_lost(d->batch ? d->batch->members[i].delivery : d, o);
	put_back(d, now);
	outbox_pace_return_token(&ep->pace);
	if (ep->tenant && ep->tenant->pace)
		outbox_pace_return_token(ep->tenant->pace);
	outbox_loop.traffic.refill_all = true; /* the link may be up again already */
	if (o->lacks)
	{
		until = Max(until, now + AFTER_LACK) + EACH_LACK;
		outbox_pace_wait(&ep->pace, Max(until, ep->pace.retry_at + o->lost * EACH_LOST));
		outbox_endpoint_note_lack(ep, o->lacks, ep->pace.retry_at);
	}
	outbox_busy_add(ep);
}

static void
batch_done(OutboxBatch *b, const OutboxOutcome *outcome, TimestampTz now)
{
	bool kept = false; /* the answer is, with one of its events */

	outbox_unsettled_add(b->endpoint, b->n);
	outbox_batch_judge(b, outcome);
	for (int i = 0; i < b->n; i++)
	{
		const char *error = outbox_batch_error(b, i);

		outbox_loop.traffic.delivered += error == NULL;
		kept |= outbox_attempt_ended(b->members[i].delivery, outcome, error, !kept);
	}
	OUTBOX_CRASH_POINT("batch.judged");
	outbox_batch_done(b, outcome, now);
}

static void fill(OutboxEndpoint *ep, TimestampTz now, bool turn);

/* A request has ended.  Its delivery was sent alone, or is the first one of a batch. */
static void
request_ended(OutboxDelivery *d, const OutboxOutcome *outcome, TimestampTz now)
{
	OutboxEndpoint *ep = d->endpoint;
	OutboxOutcome	clean;

	/* If the clock was set forward meanwhile, the failure is not judged by that. */
	if (d->batch || outcome->result > OUTBOX_RESULT_UNKNOWN)
		(void) outbox_clock_went_back(now);
	OUTBOX_CRASH_POINT("answer.arrived");
	if (outcome->result == OUTBOX_RESULT_UNAVAILABLE)
	{
		not_sent(d, outcome, now);
		return;
	}
	if (outcome->error[0])
	{
		/* From here the words go into tables, views, events and the log. */
		clean = *outcome;
		outbox_foreign_words(clean.error);
		outcome = &clean;
	}
	end_flight(d,
			   outcome->result > OUTBOX_RESULT_UNKNOWN ? FAILURE_COUNTS : REQUEST_COUNTS,
			   now);
	if (d->batch)
		batch_done(d->batch, outcome, now);
	else
	{
		bool good = outcome->result <= OUTBOX_RESULT_UNKNOWN;

		outbox_unsettled_add(ep, 1);
		d->transfer = NULL;
		outbox_loop.traffic.delivered += good;
		outbox_attempt_ended(d, outcome, good ? NULL : outcome->error, true);
		outbox_outcome_done(ep, d, outcome, now);
	}
	OUTBOX_CRASH_POINT("answer.noted");
	ended(ep, now);
	if (outbox_slots_wanted())
		return;

	/*
	 * Nothing is read from the log here.  The loop sends events whose payload has
	 * to be read first.
	 */
	outbox_payload_readable = false;
	fill(ep, now, false);
	outbox_payload_readable = true;
	outbox_loop.traffic.refill_all = outbox_loop.traffic.refill_all ||
		outbox_payload_wanted;
	outbox_payload_wanted = false;
}

/* A transport calls it from its poll, which is no call into the transport meanwhile. */
static void
done(void *arg, const OutboxOutcome *outcome)
{
	int32 endpoint = outbox_watchdog.endpoint;

	request_ended(arg, outcome, outbox_watchdog_leave());
	outbox_watchdog_return(endpoint);
}

void
outbox_dispatch_flush(void)
{
	outbox_watchdog_call_all(flush);
}

void
outbox_dispatch_init(OutboxEnded callback)
{
	ended = callback;
	outbox_payload_before_large = outbox_dispatch_flush;
	outbox_watchdog_init();
	outbox_sinks_load(&(OutboxServices){.done = done,
										.serves = outbox_watchdog_serves,
										.thread_serves = outbox_watchdog_thread_serves},
					  outbox_watchdog_worked, outbox_watchdog_owes);
}

/* Starts a request of the endpoint.  'now' was before it was signed. */
static void
start(OutboxEndpoint *ep, OutboxTransfer *t, const OutboxMessage *message, void *delivery,
	  TimestampTz now)
{
	ep->config.target.kept_answer = outbox_attempts_keep_good(ep);
	outbox_watchdog_enter_at(ep->id,
							 message->body_len < SIGNED_SOON ? now :
															   GetCurrentTimestamp());
	ep->config.target.transport->start(t, &ep->config.target, ep->link->handle, message,
									   delivery);
	outbox_watchdog_leave();
}

/*
 * Sends a delivery, or makes it dead if it can never be sent.  False: it cannot be
 * sent now, and is ready again.
 */
static bool
send(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	const OutboxTransport	  *transport = ep->config.target.transport;
	const OutboxRequestConfig *settings = &ep->config.request;
	bool					   gone;
	OutboxEvent				  *event;
	OutboxTransfer			  *t = NULL;
	OutboxMessage			   message = {0};
	const char				  *problem;

	event = outbox_endpoint_load(ep, d->event, settings->format,
								 ep->queue->nin_flight - 1, transport->memory, now, &gone,
								 &problem);
	if (gone || problem)
	{
		outbox_outcome_dead(ep, d, gone ? "event is gone" : "invalid event",
							gone ? "the event is no longer in the log" : problem);
		outbox_unsettled_add(ep, 1);
		return true;
	}
	if (event)
		t = transport->acquire();
	if (t == NULL)
	{
		if (event)
			outbox_page_unref(event->page);
		outbox_endpoint_put_back(ep, d);
		return false;
	}
	message.body = outbox_request_body(event, settings->format, &message.body_len);
	outbox_payload_used(event);
	now =
		GetCurrentTimestamp(); /* the round may have begun before the event was emitted */
	if (transport->headers)
		problem = outbox_request_headers(transport->headers(t), event, settings,
										 d->attempts + 1, d->redelivery,
										 timestamptz_to_time_t(now), message.body,
										 message.body_len);
	else
		problem = outbox_message_fill(&message, event, settings, d->attempts + 1,
									  d->redelivery, transport->attribute_prefix);
	if (problem)
	{
		transport->release(t);
		outbox_page_unref(event->page);
		outbox_outcome_dead(ep, d, "invalid event", problem);
		outbox_unsettled_add(ep, 1);
		return true;
	}
	d->transport = transport;
	d->transfer = t;
	d->sent = event;
	d->started_at = now;
	begin_flight(ep, transport->memory, message.body_len, now);
	OUTBOX_CRASH_POINT("send.begin");
	start(ep, t, &message, d, now);
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
	now = GetCurrentTimestamp();
	problem = outbox_request_batch_headers(transport->headers(t), b->id,
										   &ep->config.request, b->attempt,
										   timestamptz_to_time_t(now), b->body.bytes,
										   b->body.len);
	if (problem)
	{
		transport->release(t);
		outbox_unsettled_add(ep, b->n);
		outbox_batch_dead(b, "invalid event", problem);
		return true;
	}
	b->transport = transport;
	b->transfer = t;
	begin_flight(ep, BATCH_BYTES(transport), b->body.len, now);
	for (int i = 0; i < b->n; i++)
		b->members[i].delivery->started_at = now;
	message.body = b->body.bytes;
	message.body_len = b->body.len;
	start(ep, t, &message, b->members[0].delivery, now);
	OUTBOX_CRASH_POINT("batch.started");
	return true;
}

/*
 * Sends the next request of an endpoint.  False: nothing was sent.  '*nothing' is
 * true if there was nothing to send.
 */
static bool
send_next(OutboxEndpoint *ep, TimestampTz now, bool *nothing)
{
	bool			shapes = ep->config.request.shape.text != NULL;
	bool			sent;
	OutboxDelivery *d;
	OutboxBatch	   *b;

	*nothing = true;
	if (shapes && !outbox_judge_may_shape(ep))
		return false;
	if (ep->config.batch_size > 1)
	{
		b = outbox_batch_next(ep, BATCH_BYTES(ep->config.target.transport), now, nothing);
		sent = b != NULL && send_batch(b, now);
	}
	else
	{
		d = outbox_endpoint_next(ep, now);
		*nothing = d == NULL;
		sent = d != NULL && send(ep, d, now);
	}
	if (shapes)
		outbox_judge_count(ep, 0);
	return sent;
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

/* The bound that keeps an endpoint from sending its next request. */
typedef enum Bound
{
	BOUND_NONE,
	BOUND_OWN,	   /* its state, its limits, or its breaker */
	BOUND_WIDTH,   /* the width of its transport */
	BOUND_NOTHING, /* it was tried: nothing can be sent */
	/* With these it waits among the others. */
	BOUND_TENANT, /* the limits of its tenant */
	BOUND_SETTLE, /* so many of its deliveries have ended and are not settled */
	BOUND_SLOT,	  /* the slots that others have */
	BOUND_TURN,	  /* others wait before it */
	BOUND_TIME,	  /* the round is over */
	BOUND_MEMORY  /* it was tried: its request does not fit now, or cannot be made */
} Bound;

static Bound
bound_of(OutboxEndpoint *ep, TimestampTz now, int width, bool turn)
{
	return !outbox_status_is_ready(ep, now)	   ? BOUND_OWN :
		ep->queue->nin_flight >= width		   ? BOUND_WIDTH :
		!outbox_tenant_allows(ep->tenant, now) ? BOUND_TENANT :
		this_round.over						   ? BOUND_TIME :
		!outbox_unsettled_may_send(ep)		   ? BOUND_SETTLE :
		!outbox_slots_free_for(ep)			   ? BOUND_SLOT :
		!turn && outbox_slots_wanted()		   ? BOUND_TURN :
												 BOUND_NONE;
}

/* The endpoint waits for the thing that it lacks, in turn or until its time. */
static void
wait_for(OutboxEndpoint *ep, Bound bound, TimestampTz now)
{
	bool something = outbox_window_has_something(ep);

	if (bound == BOUND_WIDTH && something)
		(void) width_of(ep, true);
	if (bound == BOUND_MEMORY || (bound >= BOUND_TENANT && something))
		outbox_slots_wait(ep,
						  bound == BOUND_MEMORY		? OUTBOX_LACKS_MEMORY :
							  bound == BOUND_SETTLE ? OUTBOX_LACKS_SETTLE :
													  OUTBOX_LACKS_TURN,
						  now);
	else
		outbox_slots_leave(ep);
}

/*
 * Fills the endpoint's free slots until others wait.  'turn': it waited, and is the next.
 */
static void
fill(OutboxEndpoint *ep, TimestampTz now, bool turn)
{
	int	  width;
	Bound bound;

	if (outbox_window_has_something(ep) && ep->member.recreate)
		return;
	ep->lists->touched = false;
	if (outbox_window_has_something(ep) && !outbox_loop.traffic.sending_allowed)
		return;
	width = width_of(ep, false);
	while ((bound = bound_of(ep, now, width, turn)) == BOUND_NONE)
	{
		bool nothing;

		turn = false;
		if (send_next(ep, now, &nothing))
			continue;
		bound = nothing ? BOUND_NOTHING : BOUND_MEMORY;
		break;
	}
	wait_for(ep, bound, now);

	/* How far it has read is stored in time, whenever the answer comes. */
	if (ep->place.moved && ep->lists->settle_list != &outbox_loop.to_settle.behind)
		outbox_settle_add(&outbox_loop.to_settle, ep);

	/*
	 * Examine it again: it has outcomes to settle, or waits for a time.
	 */
	if (!outbox_is_listed(&ep->lists->busy_node) &&
		(outbox_settle_wants(ep) ||
		 (outbox_window_has_something(ep) && !outbox_slots_waits(ep))))
		outbox_busy_add(ep);
}

void
outbox_dispatch_fill_all(TimestampTz now)
{
	OutboxEndpoint *ep = NULL;

	outbox_loop.traffic.refill_all = false;
	begin_requests(GetCurrentTimestamp() - Max(now, outbox_loop.due.settled_at));
	outbox_slots_ask_again(now);
	while ((ep = outbox_busy_next(ep)) != NULL)
	{
		if (ep->feed->drop_window)
			outbox_window_drop(ep, &outbox_loop.head);
		fill(ep, now, false);
	}
	while (!this_round.over && outbox_loop.traffic.sending_allowed &&
		   (ep = outbox_slots_next(now)) != NULL)
		fill(ep, now, true);
	if ((this_round.over && outbox_slots_wanted()) ||
		outbox_slots_more(this_round.end != 0))
		outbox_loop.traffic.refill_all = true;
}

static OutboxDelivery *
started_before(OutboxEndpoint *ep, TimestampTz before)
{
	for (OutboxDelivery *d = NULL;
		 (d = outbox_delivery_next(&ep->queue->in_flight, d)) != NULL;)
		if (d->started_at < before)
			return d;
	return NULL;
}

void
outbox_dispatch_cancel(OutboxEndpoint *ep, TimestampTz before)
{
	TimestampTz		now = GetCurrentTimestamp();
	OutboxDelivery *d;

	while ((d = started_before(ep, before)) != NULL)
	{
		outbox_watchdog_enter(ep->id);
		if (d->batch)
			d->batch->transport->cancel(d->batch->transfer);
		else
			d->transport->cancel(d->transfer);
		outbox_watchdog_leave();
		outbox_attempts_broken_off(d, now);
		put_back(d, now);
	}
}

/*
 * An endpoint that waits for a slot needs no time, because the worker examines it
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
	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN ||
		!outbox_pace_has_slot(&ep->pace, ep->queue->nin_flight))
		return t;
	if (ep->queue->nin_flight >= width_of(ep, false))
		return outbox_window_has_something(ep) ? now + ASK_AGAIN : t;
	if (!outbox_step_held(OUTBOX_STEP_READ, ep->id)) /* else they cannot be loaded */
		t = outbox_retries_due(ep);
	if (!outbox_step_may(OUTBOX_STEP_PARKED))
		t = Max(t, outbox_step_next_try(OUTBOX_STEP_PARKED, 0));
	t = Min(t, outbox_batch_due(ep, now));
	if (outbox_window_has_something(ep) || t <= now)
	{
		TimestampTz token_at = outbox_pace_token_at(&ep->pace, now);

		if (token_at > now)
			t = token_at;
	}
	return t;
}
