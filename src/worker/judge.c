/*
 * judge.c
 *	  Owns when the filters of endpoints are evaluated, and the time that they take.
 *
 * An evaluation cannot be interrupted.  So the time that it took is a debt of the endpoint
 * and of its tenant (flow.c).  While they owe, the endpoint is not asked: it is then
 * an endpoint that is behind (README.md, "Filters that take long").
 */
#include "base/outbox.h"

#include "endpoint/filter.h"
#include "endpoint/flow.h"
#include "endpoint/pace.h"
#include "worker/busy.h"
#include "worker/judge.h"
#include "worker/loop.h"
#include "worker/slots.h"
#include "worker/watchdog.h"

/* The lack of an endpoint whose filter has to wait. */
#define LACKS_TIME \
	"its filter, or others of its tenant, take too much of the worker's time"

/* An endpoint that rests is woken to note that its filter took this time (µs). */
#define WAKE_FOR 20

TimestampTz
outbox_judge_owes_until(OutboxEndpoint *ep)
{
	TimestampTz until = outbox_slots_judge_at(ep);

	if (until != 0)
		outbox_loop.due.judge_at = Min(outbox_loop.due.judge_at, until);
	return until;
}

bool
outbox_judge_later(OutboxEndpoint *ep)
{
	TimestampTz until = ep->config.filter ? outbox_judge_owes_until(ep) : 0;

	if (until == 0)
		return false;
	if (!outbox_endpoint_rests(ep))
		outbox_endpoint_note_lack(ep, LACKS_TIME, until);
	return true;
}

void
outbox_judge_again(TimestampTz now)
{
	if (now < outbox_loop.due.judge_at)
		return;
	outbox_loop.due.judge_at = DT_NOEND;
	outbox_turn_all_again(OUTBOX_TURN_JUDGE);
}

static void
begin(void)
{
	TimestampTz now;

	(void) outbox_watchdog_work(&now);
}

bool
outbox_judge_may_shape(OutboxEndpoint *ep)
{
	TimestampTz until = outbox_slots_judge_at(ep);

	if (until != 0)
	{
		outbox_pace_wait(&ep->pace, until);
		return false;
	}
	begin();
	return true;
}

void
outbox_judge_count(OutboxEndpoint *ep, int64 booked)
{
	TimestampTz now;
	int64		usec = outbox_watchdog_work(&now);

	if (outbox_endpoint_rests(ep) && usec >= WAKE_FOR)
		outbox_busy_add(ep);
	outbox_slots_judged(ep, outbox_flow_debt(usec), booked, now);
}

/* The payload is unpacked before, because that would be done for an event in any case. */
static OutboxFilterResult
evaluate(OutboxEndpoint *ep, OutboxRow *row, int64 booked)
{
	Jsonb			  *payload = outbox_row_payload(row);
	OutboxFilterResult result;

	begin();
	result = outbox_filter(ep->config.filter, payload);
	outbox_judge_count(ep, booked);
	return result;
}

static bool
has_to_judge(OutboxEndpoint *ep, OutboxRow *row)
{
	return ep->config.filter != NULL && !outbox_row_unreadable(row);
}

OutboxFilterResult
outbox_judge_now(OutboxEndpoint *ep, OutboxRow *row)
{
	return has_to_judge(ep, row) ? evaluate(ep, row, 0) : OUTBOX_FILTER_YES;
}

OutboxFilterResult
outbox_judge(OutboxEndpoint *ep, OutboxRow *row)
{
	int64 usec;

	if (!has_to_judge(ep, row))
		return OUTBOX_FILTER_YES;
	if (outbox_judge_later(ep))
		return OUTBOX_FILTER_LATER;
	usec = outbox_flow_debt(
		outbox_filter_time(ep->config.filter, outbox_row_payload(row)));
	if (usec > 0 && outbox_endpoint_rests(ep))
		outbox_busy_add(ep);
	if (usec > 0 && !outbox_slots_book(ep, usec))
	{
		(void) outbox_judge_later(ep);
		return OUTBOX_FILTER_LATER;
	}
	return evaluate(ep, row, usec);
}
