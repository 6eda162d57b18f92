/*
 * judge.c
 *	  Owns when the filters of endpoints are evaluated, and the time that they take.
 *
 * An evaluation cannot be interrupted.  So the time that it took is a debt of the endpoint
 * and of its tenant (flow.c).  While they owe, the endpoint is not asked: it is then
 * an endpoint that is behind (README.md, "Filters that take long").
 */
#include "base/outbox.h"

#include "utils/timestamp.h"

#include "endpoint/subscribers.h"
#include "worker/busy.h"
#include "worker/judge.h"
#include "worker/slots.h"
#include "worker/watchdog.h"

/* The lack of an endpoint whose filter has to wait. */
#define LACKS_TIME \
	"its filter, or others of its tenant, take too much of the worker's time"

/* An endpoint that rests is woken to note that its filter took this time (µs). */
#define WAKE_FOR 20

/* Above this part of OUTBOX_FILTER_MAX_WORK a first evaluation may take long. */
#define LONG_SHARE 32

static TimestampTz next_time = DT_NOEND;

/* It is not known how long the filter takes, and it may be long for this event. */
static bool
may_take_long(const OutboxEndpoint *ep, OutboxRow *row)
{
	const Jsonb *payload;

	if (ep->config.judged || (row && outbox_row_unreadable(row)))
		return false;
	if (row == NULL)
		return true;
	payload = outbox_row_payload(row);
	return payload &&
		(uint64) VARSIZE(ep->config.filter) * VARSIZE(payload) >
		OUTBOX_FILTER_MAX_WORK / LONG_SHARE;
}

bool
outbox_judge_later(OutboxEndpoint *ep, OutboxRow *row)
{
	TimestampTz now;
	TimestampTz until;
	bool		unknown;

	if (ep->config.filter == NULL)
		return false;
	unknown = may_take_long(ep, row);
	if (!unknown && !outbox_slots_may_owe(ep))
		return false;
	now = GetCurrentTimestamp();
	until = outbox_slots_judge_at(ep, unknown, now);
	if (until <= now)
		return false;
	next_time = Min(next_time, until);
	if (!outbox_endpoint_rests(ep))
		outbox_endpoint_note_lack(ep, LACKS_TIME, until);
	return true;
}

TimestampTz
outbox_judge_next_time(void)
{
	return next_time;
}

void
outbox_judge_again(TimestampTz now)
{
	if (now < next_time)
		return;
	next_time = DT_NOEND;
	outbox_turn_all_again(OUTBOX_TURN_JUDGE);
}

/* The payload is unpacked before, because that would be done for an event in any case. */
OutboxFilterResult
outbox_judge(OutboxEndpoint *ep, OutboxRow *row)
{
	OutboxFilterResult result;
	int64			   usec;

	if (ep->config.filter == NULL || outbox_row_unreadable(row))
		return OUTBOX_FILTER_YES;
	(void) outbox_row_payload(row);
	(void) outbox_watchdog_work();
	result = outbox_passes(ep, row);
	ep->config.judged = true;
	usec = outbox_watchdog_work();
	if (outbox_endpoint_rests(ep) && usec >= WAKE_FOR)
		outbox_busy_add(ep);
	outbox_slots_judged(ep, usec, GetCurrentTimestamp());
	return result;
}
