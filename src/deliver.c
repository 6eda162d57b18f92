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
	outbox_deliver_fill(ep, now);
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
	problem = body == NULL ? "the payload cannot be converted to UTF-8" :
		outbox_request_headers(outbox_http_headers(t), d->event, &ep->request,
							   d->attempts + 1, d->redelivery,
							   timestamptz_to_time_t(now), body, len);
	if (problem)
	{
		outbox_http_release(t);
		outbox_endpoint_dead(ep, d, "invalid event", problem, true);
		outbox_unsettled++;
		return true;
	}
	d->transfer = t;
	outbox_in_flight++;
	outbox_http_start(t, &ep->target, body, len, d);
	return true;
}

bool
outbox_deliver_fill(OutboxEndpoint *ep, TimestampTz now)
{
	if (!outbox_may_send || ep->recreate)
		return true;
	for (;;)
	{
		OutboxDelivery *d;

		if (outbox_in_flight >= outbox_worker_max_in_flight)
			return false;
		d = outbox_endpoint_next(ep, now);
		if (d == NULL)
			return true;
		if (!send(ep, d, now))
			return false;
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
