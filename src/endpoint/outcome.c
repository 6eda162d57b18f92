/*
 * outcome.c
 *	  Owns the effect of a request's end on the delivery, on the followers in
 *	  its lane, and on the endpoint.
 */
#include "base/outbox.h"

#include "access/transam.h"

#include "base/log_lines.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/queue.h"
#include "endpoint/retries.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"

/* Ends its flight: it is on no list then, and its lane has no head. */
static void
leave_flight(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	ep->queue->nin_flight--;
	ep->queue->nheads--;
	if (d->lane && d->lane->head == d)
		d->lane->head = NULL;
}

static void
set_error(OutboxEndpoint *ep, OutboxDelivery *d, const char *error)
{
	if (d->error)
		pfree(d->error);
	d->error = MemoryContextStrdup(ep->cxt, error);
	outbox_tally_error(ep, error);
}

/*
 * With on_exhausted = 'block', a dead delivery blocks its key only if its attempts
 * or its time were exhausted, or the receiver aborted it.
 */
bool
outbox_outcome_reason_blocks(const char *reason)
{
	static const char *const tried[] = {"max_attempts", "max_age", "aborted by receiver"};

	for (size_t i = 0; reason != NULL && i < lengthof(tried); i++)
		if (strcmp(reason, tried[i]) == 0)
			return true;
	return false;
}

bool
outbox_outcome_blocks(const OutboxEndpoint *ep, const char *reason)
{
	return ep->config.block_on_dead && outbox_outcome_reason_blocks(reason);
}

void
outbox_outcome_give_up(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason,
					   const char *error)
{
	d->reason = reason;
	set_error(ep, d, error);
	outbox_tally_death(ep, reason);
	outbox_delivery_settle(ep, d, OUTBOX_VERDICT_DEAD);
}

void
outbox_outcome_log_dead(const OutboxEndpoint *ep, const OutboxDelivery *d,
						const char *reason, const char *error)
{
	ereport(outbox_log_line_may(OUTBOX_LINE_DEAD, ep->config.name) ? LOG : DEBUG1,
			(errmsg("outbox delivery of event %s to \"%s\" is dead: %s: %s",
					d->event->id_text, ep->config.name, reason, error)));
}

void
outbox_outcome_dead(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason,
					const char *error)
{
	OutboxLane *lane = d->lane;

	leave_flight(ep, d);
	outbox_outcome_give_up(ep, d, reason, error);
	if (lane == NULL)
		return;
	if (outbox_outcome_blocks(ep, reason))
	{
		lane->blockers++;
		outbox_lane_park_later(ep, lane);
	}
	else
		outbox_lane_advance(ep, lane);
}

void
outbox_outcome_unsent(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason,
					  const char *error)
{
	d->state = OUTBOX_DELIVERY_IN_FLIGHT;
	dlist_push_tail(&ep->queue->in_flight, &d->node);
	ep->queue->nin_flight++;
	ep->queue->nheads++;
	outbox_outcome_dead(ep, d, reason, error);
}

void
outbox_outcome_failed(OutboxEndpoint *ep, OutboxDelivery *d, const OutboxOutcome *o,
					  const char *error)
{
	outbox_tally_failure(ep, o);
	if (d->first_attempt_at == 0)
		d->first_attempt_at = d->started_at;
	d->unsent = false;
	d->last_status = o->status;

	/* A probe, and an answer that disables the endpoint, use up no attempt. */
	if (!d->probe && o->result != OUTBOX_RESULT_DISABLE)
		d->attempts++;
	set_error(ep, d, error);
}

bool
outbox_outcome_is_present(const OutboxEndpoint *ep, const OutboxDelivery *d)
{
	return d->url_version == ep->config.url_version;
}

void
outbox_outcome_request_failed(OutboxEndpoint *ep, OutboxDelivery *d, bool alone,
							  const OutboxOutcome *o, TimestampTz now)
{
	if (!outbox_outcome_is_present(ep, d))
		return;
	if (o->result == OUTBOX_RESULT_DISABLE)
		outbox_status_disable(ep, o->why_disabled, now);

	if (!o->event_at_fault || outbox_target_is_webhook(&ep->config.target))
		outbox_status_failure(ep, d, alone && o->event_at_fault, now);
	if (o->slow_down)
	{
		outbox_pace_slow_down(&ep->pace, o->retry_after, now);
		ep->status.rest_xid = U64FromFullTransactionId(ReadNextFullTransactionId());
	}

	/* It asks for fewer requests and does not say when, as 429 without Retry-After does. */
	if (o->slow_down && o->no_event_at_fault && o->retry_after < 0)
		outbox_pace_wait(&ep->pace,
						 now +
							 outbox_pace_backoff(&ep->pace, Max(ep->pace.failures.n, 1)));
}

bool
outbox_outcome_rests_since(const OutboxEndpoint *ep, uint64 xid)
{
	return xid < ep->status.rest_xid;
}

const char *
outbox_outcome_exhausted(const OutboxEndpoint *ep, const OutboxDelivery *d,
						 TimestampTz now)
{
	if (ep->config.max_attempts > 0 && d->attempts >= ep->config.max_attempts)
		return "max_attempts";
	if (now - d->first_attempt_at >= ep->config.max_age)
		return "max_age";
	return NULL;
}

int64
outbox_outcome_wait(OutboxEndpoint *ep, const OutboxDelivery *d, const OutboxOutcome *o)
{
	int64 wait = o->result == OUTBOX_RESULT_DISABLE ?
		0 :
		outbox_pace_backoff(&ep->pace, Max(d->attempts, 1));

	if (o->retry_after > 0)
	{
		int64 floor = Min(o->retry_after,
						  ep->pace.limits.backoff_max / USECS_PER_SEC + 1);

		wait = Max(wait, Min(floor * USECS_PER_SEC, ep->pace.limits.backoff_max));
	}
	return wait;
}

static void
wait_until(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz due)
{
	OutboxLane *lane = d->lane;

	d->next_attempt_at = due;
	outbox_delivery_settle(ep, d, OUTBOX_VERDICT_RETRY);
	if (lane)
	{
		lane->blockers++;
		outbox_lane_park_later(ep, lane);
	}
}

void
outbox_outcome_retry(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz due)
{
	wait_until(ep, d, Min(due, d->first_attempt_at + ep->config.max_age));
}

/* Its row has been due since the event was emitted, so rows come back in that order. */
void
outbox_outcome_keep(OutboxEndpoint *ep, OutboxDelivery *d)
{
	outbox_delivery_leave_ready(ep, d);
	if (d->lane)
		d->lane->head = NULL;
	wait_until(ep, d, d->event->created_at);
}

/*
 * True if a probe of the topic is in flight, or a request that began before the topic was
 * held.
 */
static bool
probes_topic(const OutboxEndpoint *ep, const char *topic)
{
	for (OutboxDelivery *d = NULL;
		 (d = outbox_delivery_next(&ep->queue->in_flight, d)) != NULL;)
		if (strcmp(d->event->topic, topic) == 0)
			return true;
	return false;
}

/*
 * A delivery that was tried waits longer than one that was not, so that it does not take
 * all probes.  An event that an operator sends again, or whose time is over, is sent.
 */
bool
outbox_outcome_hold(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	OutboxPace	  *p = &ep->pace;
	OutboxRefused *r = outbox_pace_refused(p, d->event->topic);

	if (r == NULL || !outbox_pace_holds(p) ||
		ep->config.ordering == OUTBOX_ORDER_STRICT ||
		d->redelivery != OUTBOX_FIRST_DELIVERY ||
		(d->first_attempt_at != 0 && now - d->first_attempt_at >= ep->config.max_age) ||
		(now >= r->retry_at && !probes_topic(ep, r->topic)))
		return false;
	p->refusals_paid -= !d->parked;
	if (d->first_attempt_at == 0)
	{
		d->error = MemoryContextStrdup(ep->cxt, OUTBOX_UNSENT_WORDS);
		d->first_attempt_at = now;
		d->unsent = true;
	}
	outbox_delivery_leave_ready(ep, d);
	if (d->lane)
		d->lane->head = NULL;
	outbox_outcome_retry(ep, d,
						 Max(r->retry_at, now + outbox_pace_backoff(p, r->waits)) +
							 (d->attempts == 0 ? 0 : outbox_pace_backoff(p, r->waits)));
	return true;
}

static void
done_badly(OutboxEndpoint *ep, OutboxDelivery *d, const OutboxOutcome *o, TimestampTz now)
{
	outbox_outcome_failed(ep, d, o, o->error);
	outbox_outcome_request_failed(ep, d, true, o, now);

	if (o->result != OUTBOX_RESULT_DISABLE)
	{
		const char *reason = o->result == OUTBOX_RESULT_ABORT ?
			"aborted by receiver" :
			outbox_outcome_exhausted(ep, d, now);

		if (reason)
		{
			outbox_outcome_log_dead(ep, d, reason, o->error);
			outbox_outcome_dead(ep, d, reason, o->error);
			return;
		}
	}
	leave_flight(ep, d);
	outbox_outcome_retry(ep, d, now + outbox_outcome_wait(ep, d, o));
}

void
outbox_outcome_delivered(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	outbox_tally_success(ep, now);
	if (outbox_pace_takes(&ep->pace, d->event->topic))
		outbox_retries_untried_due(ep, now);
	if (d->attempts == 0 && d->redelivery == OUTBOX_FIRST_DELIVERY)
		outbox_tally_latency(ep, now - d->event->created_at, now);
	if (d->parked)
		outbox_delivery_settle(ep, d, OUTBOX_VERDICT_DELIVERED);
	else
		outbox_delivery_free(d);
}

void
outbox_outcome_done(OutboxEndpoint *ep, OutboxDelivery *d, const OutboxOutcome *o,
					TimestampTz now)
{
	OutboxLane *lane = d->lane;
	bool		present = outbox_outcome_is_present(ep, d);

	ep->tally->last_active_at = now;
	ep->place.dirty = true;
	if (o->result > OUTBOX_RESULT_UNKNOWN)
	{
		done_badly(ep, d, o, now);
		return;
	}

	leave_flight(ep, d);
	outbox_outcome_delivered(ep, d, now);
	if (present)
		outbox_status_success(ep, now);
	if (lane)
		outbox_lane_advance(ep, lane);
}

const char *
outbox_outcome_unfit(const OutboxDelivery *d, TimestampTz now, const char **error)
{
	if (d->event->expires_at <= now)
	{
		*error = "expires_at has passed";
		return "expired";
	}
	if (d->event->unreadable)
	{
		*error = "the event's row cannot be read; the server log says why";
		return "unreadable";
	}
	return NULL;
}
