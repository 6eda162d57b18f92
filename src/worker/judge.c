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

#include "endpoint/filter.h"
#include "worker/busy.h"
#include "worker/judge.h"
#include "worker/slots.h"
#include "worker/watchdog.h"

/* The lack of an endpoint whose filter has to wait. */
#define LACKS_TIME \
	"its filter, or others of its tenant, take too much of the worker's time"

/* An endpoint that rests is woken to note that its filter took this time (µs). */
#define WAKE_FOR 20

/* An evaluation of so many µs holds up others twice as much as shorter ones together. */
#define LONG_WORK 1000

static TimestampTz next_time = DT_NOEND;

bool
outbox_judge_later(OutboxEndpoint *ep)
{
	TimestampTz until = ep->config.filter ? outbox_slots_judge_at(ep) : 0;

	if (until == 0)
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
	Jsonb			  *payload;
	TimestampTz		   now;
	int64			   usec;

	if (ep->config.filter == NULL || outbox_row_unreadable(row))
		return OUTBOX_FILTER_YES;
	payload = outbox_row_payload(row);
	(void) outbox_watchdog_work(&now);
	result = outbox_filter(ep->config.filter, payload);
	usec = outbox_watchdog_work(&now);
	if (outbox_endpoint_rests(ep) && usec >= WAKE_FOR)
		outbox_busy_add(ep);
	outbox_slots_judged(ep, usec + usec * usec / LONG_WORK, now);
	return result;
}
