/*
 * own_events.c
 *	  Owns the events that outbox emits about itself: deliveries that became dead,
 *	  an endpoint that was disabled, keeps failing or has recovered.
 *
 * They are written in the transaction of the outcome that they report, and only
 * where an endpoint subscribes to them.  An outcome does not wait for them: while
 * the log is locked or refuses them, they are kept in memory and written later.
 * They name events and never contain a payload.  Nothing is emitted about
 * deliveries of these events, so that they never cause each other.
 */
#include "base/outbox.h"

#include "lib/stringinfo.h"
#include "utils/datetime.h"
#include "utils/json.h"

#include "base/log_lines.h"
#include "base/names.h"
#include "base/query.h"
#include "base/settings.h"
#include "endpoint/subscribers.h"
#include "log/step.h"
#include "log/transaction.h"
#include "store/own_events.h"

/* Deliveries that one outbox.dead names at most.  The others are only counted. */
#define MAX_NAMED 100

/* Notices that are kept at most while they cannot be written. */
#define MAX_KEPT 1000

/* Bytes for the end of an outbox.dead, which has the count. */
#define TAIL 32

typedef struct Notice
{
	const char *topic; /* static */
	char	   *payload;
	bool		fresh;	 /* true if the current settle made it */
	bool		written; /* true if the current settle has written it */
} Notice;

static Notice *notices;
static int	   nnotices;

static void
emit(const char *topic, const char *payload)
{
	if (notices == NULL)
		notices = MemoryContextAlloc(TopMemoryContext, sizeof(Notice) * MAX_KEPT);
	if (nnotices == MAX_KEPT)
	{
		ereport(outbox_log_line_may(OUTBOX_LINE_LOST, topic) ? WARNING : DEBUG1,
				(errmsg("event \"%s\" is lost, because %d others wait to be written",
						topic, MAX_KEPT)));
		return;
	}
	notices[nnotices].payload = MemoryContextStrdup(TopMemoryContext, payload);
	notices[nnotices].topic = topic;
	notices[nnotices].fresh = true;
	notices[nnotices++].written = false;
}

static void
write_notices(void *arg)
{
	for (int i = 0; i < nnotices; i++)
	{
		outbox_query("INSERT INTO outbox.events (topic, payload)"
					 " VALUES ($1, $2::pg_catalog.jsonb)",
					 arg_text(notices[i].topic), arg_text(notices[i].payload));
	}
}

/*
 * While the log is locked, for example by CREATE INDEX, notices are left for later.
 */
void
outbox_own_events_flush(void)
{
	OutboxStepError failure;

	if (!outbox_own_events_waits() || !outbox_lock_log())
		return;
	if (!outbox_step_try_part(write_notices, NULL, &failure))
	{
		outbox_step_hold(OUTBOX_STEP_NOTICE, 0, &failure);
		return;
	}
	for (int i = 0; i < nnotices; i++)
		notices[i].written = true;
	outbox_step_passed(OUTBOX_STEP_NOTICE, 0);
}

bool
outbox_own_events_waits(void)
{
	return nnotices > 0 && !outbox_step_held(OUTBOX_STEP_NOTICE, 0);
}

void
outbox_own_events_end_settle(bool committed)
{
	int n = 0;

	for (int i = 0; i < nnotices; i++)
	{
		Notice *notice = &notices[i];

		if (committed ? notice->written : notice->fresh)
			pfree(notice->payload);
		else
		{
			notice->fresh = notice->written = false;
			notices[n++] = *notice;
		}
	}
	nnotices = n;
}

static void
begin_payload(StringInfo buf, const OutboxEndpoint *ep)
{
	initStringInfo(buf);
	appendStringInfoString(buf, "{\"endpoint\": ");
	escape_json(buf, ep->config.name);
	if (ep->tenant)
	{
		appendStringInfoString(buf, ", \"tenant\": ");
		escape_json(buf, outbox_tenant_name(ep->tenant));
	}
}

/* True if the delivery is dead and its event is none of outbox's own. */
static bool
death_is_told(const OutboxDelivery *d)
{
	return d->verdict == OUTBOX_VERDICT_DEAD &&
		!outbox_topic_reserved(d->event->topic, strlen(d->event->topic));
}

/*
 * Names as many deliveries as outbox.max_payload_size allows, and at most
 * MAX_NAMED.  The text has the form in which jsonb is written, with a space behind
 * each colon and comma.  So its length is the payload's.
 */
static void
tell_dead(OutboxEndpoint *ep)
{
	StringInfoData buf;
	StringInfoData one;
	int			   n = 0;
	int			   named = 0;

	initStringInfo(&one);
	begin_payload(&buf, ep);
	appendStringInfoString(&buf, ", \"events\": [");
	for (OutboxDelivery *d = NULL;
		 (d = outbox_delivery_next(&ep->queue->settling, d)) != NULL;)
	{
		if (!death_is_told(d))
			continue;
		n++;
		resetStringInfo(&one);
		appendStringInfo(&one, "%s{\"id\": \"%s\", \"reason\": ", named > 0 ? ", " : "",
						 d->event->id_text);
		escape_json(&one, d->reason);
		appendStringInfoChar(&one, '}');
		if (named == MAX_NAMED || buf.len + one.len + TAIL > outbox_max_payload_size)
			continue;
		appendBinaryStringInfo(&buf, one.data, one.len);
		named++;
	}
	if (n == 0)
		return;
	appendStringInfo(&buf, "], \"count\": %d}", n);
	emit("outbox.dead", buf.data);
}

static void
tell_failing(OutboxEndpoint *ep)
{
	char		   since[MAXDATELEN + 1];
	int			   utc = 0;
	StringInfoData buf;

	JsonEncodeDateTime(since, TimestampTzGetDatum(ep->status.failing_since),
					   TIMESTAMPTZOID, &utc);
	begin_payload(&buf, ep);
	appendStringInfo(&buf, ", \"since\": \"%s\", \"reason\": ", since);
	escape_json(&buf, ep->tally->last_error);
	appendStringInfoChar(&buf, '}');
	emit("outbox.failing", buf.data);
}

void
outbox_own_events_write(OutboxEndpoint *ep, bool disabled)
{
	StringInfoData buf;

	if (ep->queue->nsettling > 0 && outbox_subscribers_exist("outbox.dead"))
		tell_dead(ep);
	if (disabled && outbox_subscribers_exist("outbox.disabled"))
	{
		begin_payload(&buf, ep);
		appendStringInfoString(&buf, ", \"reason\": ");
		escape_json(&buf, ep->status.reason);
		appendStringInfoChar(&buf, '}');
		emit("outbox.disabled", buf.data);
	}
	if (ep->status.failing_fresh && outbox_subscribers_exist("outbox.failing"))
		tell_failing(ep);
	if (ep->status.recovered && outbox_subscribers_exist("outbox.recovered"))
	{
		begin_payload(&buf, ep);
		appendStringInfoChar(&buf, '}');
		emit("outbox.recovered", buf.data);
	}
}
