/*
 * endpoint_stats.c
 *	  Owns how the figures of an endpoint in outbox.stats are computed.
 */
#include "base/outbox.h"

#include <math.h>

#include "endpoint/endpoint_stats.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/retries.h"
#include "endpoint/status.h"
#include "endpoint/window.h"

const char *const outbox_endpoint_states[] = {
	[OUTBOX_ENDPOINT_ACTIVE] = "active",
	[OUTBOX_ENDPOINT_PAUSED] = "paused",
	[OUTBOX_ENDPOINT_BACKING_OFF] = "backing_off",
	[OUTBOX_ENDPOINT_DISABLED] = "disabled",
	[OUTBOX_ENDPOINT_HELD] = "held",
	[OUTBOX_ENDPOINT_UNVERIFIED] = "unverified",
};

double
outbox_percentile(const uint32 *counts, int64 total, double p)
{
	int64 wanted = (int64) ceil(p * total);

	for (int i = 0; i < OUTBOX_HISTOGRAM_BUCKETS; i++)
	{
		wanted -= counts[i];
		if (wanted <= 0)
			return exp2((i + 0.5) / 4) / 1000.0;
	}
	return -1;
}

static void
fill_latency(OutboxEndpoint *ep, TimestampTz now, OutboxStats *s)
{
	uint32 sum[OUTBOX_HISTOGRAM_BUCKETS] = {0};
	int64  minute = now / USECS_PER_MINUTE;
	int64  total = 0;

	s->latency_p50_ms = s->latency_p95_ms = s->latency_p99_ms = -1;
	if (ep->tally->latency == NULL)
		return;
	for (int row = 0; row < OUTBOX_HISTOGRAM_MINUTES; row++)
	{
		if (ep->tally->latency->minute[row] <= minute - OUTBOX_HISTOGRAM_MINUTES)
			continue;
		for (int i = ep->tally->latency->first; i < ep->tally->latency->nbuckets; i++)
		{
			sum[i] += ep->tally->latency->count[row][i];
			total += ep->tally->latency->count[row][i];
		}
	}
	if (total == 0)
		return;
	s->latency_p50_ms = outbox_percentile(sum, total, 0.50);
	s->latency_p95_ms = outbox_percentile(sum, total, 0.95);
	s->latency_p99_ms = outbox_percentile(sum, total, 0.99);
}

static OutboxEndpointState
endpoint_state(const OutboxEndpoint *ep)
{
	if (ep->status.disabled)
		return OUTBOX_ENDPOINT_DISABLED;
	if (ep->status.held_for || outbox_status_is_stuck(ep))
		return OUTBOX_ENDPOINT_HELD;
	if (ep->status.paused)
		return OUTBOX_ENDPOINT_PAUSED;
	if (outbox_status_is_unverified(ep))
		return OUTBOX_ENDPOINT_UNVERIFIED;
	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN || ep->link->state != OUTBOX_LINK_UP)
		return OUTBOX_ENDPOINT_BACKING_OFF;
	return OUTBOX_ENDPOINT_ACTIVE;
}

/*
 * Returns when the oldest event was emitted that is neither delivered nor parked,
 * as far as is known.  0: there is none.  '*in_flight' is the number of deliveries
 * in flight.
 */
static TimestampTz
oldest_pending(OutboxEndpoint *ep, int64 *in_flight)
{
	TimestampTz oldest = DT_NOEND;

	*in_flight = 0;
	for (OutboxDelivery *d = NULL;
		 (d = outbox_delivery_next(&ep->queue->in_flight, d)) != NULL;)
	{
		(*in_flight)++;
		oldest = Min(oldest, d->event->created_at);
	}

	/* Deliveries without a row are in the order of the log. */
	if (!dlist_is_empty(&ep->queue->held))
		oldest = Min(oldest,
					 dlist_head_element(OutboxDelivery, held_node, &ep->queue->held)
						 ->event->created_at);
	for (int i = 0; i < ep->feed->window_count; i++)
	{
		OutboxWindowEntry *entry = outbox_window_at(ep, i);

		if (!entry->cancelled)
			return Min(oldest, entry->event->created_at);
	}
	if (ep->feed->backlog > 0)
		oldest = Min(oldest, ep->feed->backlog_since);
	return oldest == DT_NOEND ? 0 : oldest;
}

/*
 * Fills in the rows of outbox.parked, with the changes of the next settle.  A delivery in
 * flight is counted as such, whatever its row says.  '*dying': true if a delivery that
 * blocks its lane is about to become dead.
 */
static void
fill_rows(OutboxEndpoint *ep, OutboxStats *s, bool *dying)
{
	dlist_head *lists[] = {&ep->queue->in_flight, &ep->queue->settling};

	s->waiting.retrying = ep->table->rows[OUTBOX_ROW_RETRYING];
	s->waiting.blocked = ep->table->rows[OUTBOX_ROW_BLOCKED];
	s->waiting.dead = ep->table->rows[OUTBOX_ROW_DEAD];
	*dying = false;
	for (size_t i = 0; i < lengthof(lists); i++)
		for (OutboxDelivery *d = NULL; (d = outbox_delivery_next(lists[i], d)) != NULL;)
		{
			if (d->parked && d->seq <= ep->table->rows_upto)
				(*(d->row_retries ? &s->waiting.retrying : &s->waiting.blocked))--;
			if (d->state != OUTBOX_DELIVERY_SETTLING)
				continue;
			s->waiting.retrying += d->verdict == OUTBOX_VERDICT_RETRY;
			s->waiting.blocked += d->verdict == OUTBOX_VERDICT_BLOCKED;
			s->waiting.dead += d->verdict == OUTBOX_VERDICT_DEAD;
			*dying = *dying ||
				(d->verdict == OUTBOX_VERDICT_DEAD &&
				 outbox_outcome_blocks(ep, d->reason));
		}
}

/* True if everything of a strict endpoint waits behind a dead delivery. */
static bool
is_stuck(OutboxEndpoint *ep, bool dying)
{
	OutboxLane *lane = ep->config.ordering == OUTBOX_ORDER_STRICT ?
		outbox_lane_find(ep, "") :
		NULL;

	return lane != NULL && (lane->dead || (dying && lane->blockers > 0));
}

/* True if something waits because an answer had Retry-After. */
static bool
was_asked_to_wait(const OutboxEndpoint *ep, const OutboxStats *s, TimestampTz now)
{
	return ep->pace.breaker == OUTBOX_BREAKER_CLOSED && ep->pace.retry_at > now &&
		s->waiting.pending + s->waiting.retrying + ep->queue->nloaded_blocked > 0;
}

/*
 * The time of the next retry or probe, and of the next request of any kind where the
 * receiver has asked to wait.  0: none is due.
 */
static TimestampTz
next_attempt_at(OutboxEndpoint *ep, const OutboxStats *s, TimestampTz now)
{
	TimestampTz due = outbox_retries_first(ep) ? outbox_retries_first(ep)->due : 0;

	if (endpoint_state(ep) == OUTBOX_ENDPOINT_HELD && ep->status.held_for == NULL)
		return ep->status.stuck_until;
	if (endpoint_state(ep) == OUTBOX_ENDPOINT_UNVERIFIED && ep->proof->again_at > now)
		return ep->proof->again_at;
	if (outbox_status_is_off(ep) || ep->link->state != OUTBOX_LINK_UP)
		return 0;
	if (ep->pace.breaker == OUTBOX_BREAKER_OPEN)
		return s->waiting.pending + s->waiting.retrying + ep->queue->nloaded_blocked > 0 ?
			ep->pace.retry_at :
			0;
	if (was_asked_to_wait(ep, s, now))
		return s->waiting.pending > 0 ? ep->pace.retry_at : Max(due, ep->pace.retry_at);
	return due;
}

double
outbox_endpoint_stats_rate(const uint32 *recent, int64 newest, TimestampTz now)
{
	int64 second = now / USECS_PER_SEC;
	int64 sum = 0;

	for (int i = 0; i < 60; i++)
	{
		/* skip slots of seconds that are more than a minute ago */
		int64 at = newest - ((newest - i) % 60 + 60) % 60;

		if (at > second - 60)
			sum += recent[i];
	}
	return sum / 60.0;
}

void
outbox_endpoint_stats_fill(OutboxEndpoint *ep, TimestampTz now, OutboxStats *s)
{
	const char	  *lacks = outbox_endpoint_lacks(ep, now);
	bool		   dying;
	OutboxRefused *refused = outbox_pace_refused(&ep->pace, NULL);

	memset(s, 0, sizeof(*s));
	s->key.endpoint_id = ep->id;
	s->state = endpoint_state(ep);
	s->state_since = ep->status.state_since;
	s->waiting.pending = Max(ep->feed->backlog, 0) + ep->queue->nready +
		ep->queue->nwaiting - ep->queue->nloaded_blocked - ep->queue->nloaded_retries;
	s->pending_exact = outbox_is_counted(ep) && outbox_has_all_rows(ep);
	fill_rows(ep, s, &dying);
	if (is_stuck(ep, dying))
	{
		s->waiting.blocked += s->waiting.pending;
		s->waiting.pending = 0;
	}
	s->delivered = ep->tally->delivered;
	s->failed_attempts = ep->tally->failed_attempts;
	s->waiting.oldest_pending_at = oldest_pending(ep, &s->waiting.processing);
	s->next_attempt_at = next_attempt_at(ep, s, now);
	s->last_success_at = ep->tally->last_success_at;
	memcpy(s->counters, ep->tally->shown, sizeof(s->counters));
	s->recent_second = ep->tally->recent_second;
	memcpy(s->recent, ep->tally->recent, sizeof(s->recent));
	memcpy(s->recent_failed, ep->tally->recent_failed, sizeof(s->recent_failed));
	fill_latency(ep, now, s);
	if (ep->status.held_for)
		strlcpy(s->reason, ep->status.held_for, sizeof(s->reason));
	else if (outbox_status_is_stuck(ep))
		strlcpy(s->reason, ep->tenant ? OUTBOX_STUCK_TENANT : OUTBOX_STUCK,
				sizeof(s->reason));
	else if (ep->status.disabled || ep->status.paused)
		strlcpy(s->reason, ep->status.reason, sizeof(s->reason));
	else if (outbox_status_is_unverified(ep) && ep->link->state == OUTBOX_LINK_UP)
		strlcpy(s->reason, ep->proof->reason, sizeof(s->reason));
	else if (ep->link->state != OUTBOX_LINK_UP)
		strlcpy(s->reason, ep->link->reason, sizeof(s->reason));
	else if (ep->pace.breaker == OUTBOX_BREAKER_OPEN && ep->tally->last_error)
		strlcpy(s->reason, ep->tally->last_error, sizeof(s->reason));
	else if (ep->link->reason[0])
		strlcpy(s->reason, ep->link->reason, sizeof(s->reason));
	else if (lacks)
		strlcpy(s->reason, lacks, sizeof(s->reason));
	else if (was_asked_to_wait(ep, s, now))
		strlcpy(s->reason, "the receiver asked to wait", sizeof(s->reason));
	else if (refused &&
			 (s->waiting.retrying + s->waiting.processing > 0 ||
			  !outbox_has_all_rows(ep)))
		snprintf(s->reason, sizeof(s->reason), "the receiver refuses the topic %s",
				 refused->topic);
	if (ep->tally->last_error)
		strlcpy(s->last_error, ep->tally->last_error, sizeof(s->last_error));
	if (!outbox_has_all_rows(ep))
		s->waiting.retrying = s->waiting.blocked = s->waiting.dead = -1;
}
