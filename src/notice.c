/*
 * notice.c
 *	  Owns the events that outbox emits about itself: deliveries that died, an
 *	  endpoint that was disabled or has recovered.
 *
 * They are written with the outcome they tell of, in one transaction, and only
 * where somebody subscribes.  They name events, and never show a payload.
 * What befalls them is not told, so that they never cause themselves.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "notice.h"
#include "plan.h"
#include "reader.h"
#include "topic.h"

/* Deliveries that one outbox.dead names; the rest is counted. */
#define MAX_NAMED 100

static void
emit(const char *topic, const char *payload)
{
	Datum		args[2] = {CStringGetTextDatum(topic), CStringGetTextDatum(payload)};

	outbox_query("INSERT INTO outbox.events (topic, payload)"
				 " VALUES ($1, $2::pg_catalog.jsonb)",
				 2, (Oid[]) {TEXTOID, TEXTOID}, args, NULL);
}

static void
begin_payload(StringInfo buf, const OutboxEndpoint *ep)
{
	initStringInfo(buf);
	appendStringInfoString(buf, "{\"endpoint\":");
	escape_json(buf, ep->name);
}

/* An event of our own that dies is not told. */
static bool
death_is_told(const OutboxDelivery *d)
{
	return d->verdict == OUTBOX_VERDICT_DEAD &&
		!outbox_topic_reserved(d->event->topic, strlen(d->event->topic));
}

static void
tell_dead(OutboxEndpoint *ep)
{
	StringInfoData buf;
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &ep->settling)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		if (!death_is_told(d))
			continue;
		if (n++ == 0)
		{
			begin_payload(&buf, ep);
			appendStringInfoString(&buf, ",\"events\":[");
		}
		else if (n <= MAX_NAMED)
			appendStringInfoChar(&buf, ',');
		if (n <= MAX_NAMED)
		{
			appendStringInfo(&buf, "{\"id\":\"%s\",\"reason\":", d->event->id_text);
			escape_json(&buf, d->reason);
			appendStringInfoChar(&buf, '}');
		}
	}
	if (n == 0)
		return;
	appendStringInfo(&buf, "],\"count\":%d}", n);
	emit("outbox.dead", buf.data);
}

bool
outbox_notice_wanted(dlist_head *busy)
{
	bool		dead = outbox_reader_has_subscriber("outbox.dead");
	bool		disabled = outbox_reader_has_subscriber("outbox.disabled");
	bool		recovered = outbox_reader_has_subscriber("outbox.recovered");
	dlist_iter	iter;
	dlist_iter	settling;

	if (!dead && !disabled && !recovered)
		return false;
	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, busy_node, iter.cur);

		if ((disabled && ep->state_dirty) || (recovered && ep->recovered))
			return true;
		if (dead)
			dlist_foreach(settling, &ep->settling)
				if (death_is_told(dlist_container(OutboxDelivery, node, settling.cur)))
					return true;
	}
	return false;
}

void
outbox_notice_write(OutboxEndpoint *ep, bool disabled)
{
	StringInfoData buf;

	if (ep->nsettling > 0 && outbox_reader_has_subscriber("outbox.dead"))
		tell_dead(ep);
	if (disabled && outbox_reader_has_subscriber("outbox.disabled"))
	{
		begin_payload(&buf, ep);
		appendStringInfoString(&buf, ",\"reason\":");
		escape_json(&buf, ep->reason);
		appendStringInfoChar(&buf, '}');
		emit("outbox.disabled", buf.data);
	}
	if (ep->recovered && outbox_reader_has_subscriber("outbox.recovered"))
	{
		begin_payload(&buf, ep);
		appendStringInfoChar(&buf, '}');
		emit("outbox.recovered", buf.data);
	}
	ep->recovered = false;
}
