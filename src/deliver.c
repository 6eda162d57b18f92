/*
 * deliver.c
 *	  Owns the way between an endpoint and its transport: makes requests of
 *	  deliveries, and outcomes of answers.
 */
#include "outbox.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "deliver.h"
#include "settle.h"

int			outbox_in_flight;
int64		outbox_delivered;
int			outbox_unsettled;
bool		outbox_starved;
bool		outbox_may_send;

static OutboxEnded ended;

static void
done(void *arg, const OutboxOutcome *outcome)
{
	OutboxDelivery *d = arg;
	OutboxEndpoint *ep = d->endpoint;
	TimestampTz now = GetCurrentTimestamp();

	outbox_in_flight--;
	outbox_unsettled++;
	d->transfer = NULL;
	if (outcome->status >= 200 && outcome->status <= 299)
		outbox_delivered++;
	outbox_settle_attempt(d, outcome);
	outbox_endpoint_done(ep, d, outcome, now);
	ended(ep, now);
	if (!outbox_starved)
		outbox_deliver_fill(ep, now, outbox_worker_max_in_flight);
}

void
outbox_deliver_init(OutboxEnded callback)
{
	ended = callback;
	outbox_http_init(done);
}

/* False: not now; the delivery is as it was. */
static bool
send(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now)
{
	OutboxTransfer *t = outbox_http_acquire();
	const char *body;
	const char *problem;
	size_t		len;

	if (t == NULL)
	{
		outbox_endpoint_put_back(ep, d);
		return false;
	}
	body = outbox_request_body(d->event, ep->request.format, &len);
	problem = outbox_request_headers(outbox_http_headers(t), d->event, &ep->request,
									 d->attempts + 1, d->redelivery,
									 timestamptz_to_time_t(now), body, len);
	if (problem)
	{
		outbox_http_release(t);
		outbox_endpoint_dead(ep, d, "invalid event", problem);
		outbox_unsettled++;
		return true;
	}
	d->transfer = t;
	outbox_in_flight++;
	outbox_http_start(t, &ep->target, body, len, d);
	return true;
}

void
outbox_deliver_fill(OutboxEndpoint *ep, TimestampTz now, int most)
{
	/*
	 * What is not settled will be sent again after a crash: while a settle is
	 * held up there is a bound to it.
	 */
	if (!outbox_may_send || ep->recreate ||
		outbox_unsettled >= 4 * OUTBOX_SETTLE_AFTER)
		return;
	for (;;)
	{
		OutboxDelivery *d;

		/* Everyone keeps one slot, whatever the others have. */
		if (ep->nin_flight > 0)
		{
			if (ep->nin_flight >= most)
				return;
			if (outbox_in_flight >= outbox_worker_max_in_flight)
			{
				if (ep->nready + ep->window_count > 0 &&
					outbox_endpoint_may_send(ep, now))
					outbox_starved = true;
				return;
			}
		}
		d = outbox_endpoint_next(ep, now);
		if (d == NULL)
			return;
		if (!send(ep, d, now))
		{
			outbox_starved = true;
			return;
		}
	}
}

void
outbox_deliver_cancel(OutboxEndpoint *ep, TimestampTz before)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &ep->in_flight)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		if (d->started_at >= before)
			continue;
		outbox_http_cancel(d->transfer);
		outbox_in_flight--;
		outbox_endpoint_put_back(ep, d);
	}
}
