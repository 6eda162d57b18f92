/*
 * parked.c
 *	  Owns how deliveries come from outbox.parked and go there.  A row waits for a retry
 *	  or behind its key's head, is dead, or was cancelled.
 */
#include "base/outbox.h"

#include "utils/fmgrprotos.h"

#include "base/log_lines.h"
#include "base/query.h"
#include "endpoint/lane.h"
#include "endpoint/operator.h"
#include "endpoint/parking.h"
#include "endpoint/tally.h"
#include "log/kept.h"
#include "log/transaction.h"
#include "store/parked.h"

typedef struct LoadedRow
{
	int64		 seq;
	char		*key;
	int			 attempts;
	TimestampTz	 first_attempt_at;
	bool		 unsent;
	int16		 redelivery; /* an OutboxRedelivery */
	int64		 group;
	OutboxEvent *event;
} LoadedRow;

typedef struct Loading
{
	int			found; /* rows that were read, also if they are in memory already */
	int			n;
	LoadedRow  *rows;
	OutboxPage *page; /* of their events */
} Loading;

static void
take_loaded(void *arg, void *wanted, OutboxEvent *event)
{
	Loading *l = arg;

	for (int i = 0; i < l->n; i++)
		if (l->rows[i].seq == event->seq && l->rows[i].event == NULL)
			l->rows[i].event = event;
}

/*
 * Rows whose event no longer exists, or is forgotten.  That is found while events are
 * read.  The next settle makes the rows dead, so that users see it in
 * outbox.dead_letters, or cancelled.
 */
typedef struct Gone
{
	int32 endpoint_id;
	int64 seq;
	bool  forgotten;
} Gone;

static Gone *gone;
static int	 ngone;

static void
event_is_gone(OutboxEndpoint *ep, int64 seq, bool retry, bool forgotten)
{
	if (!forgotten)
		ereport(outbox_log_line_may(OUTBOX_LINE_DEAD, ep->config.name) ? WARNING : DEBUG1,
				(errmsg("outbox event with seq " INT64_FORMAT
						" for endpoint \"%s\" is gone",
						seq, ep->config.name)));
	gone = gone == NULL ? MemoryContextAlloc(TopMemoryContext, sizeof(Gone)) :
						  repalloc(gone, sizeof(Gone) * (ngone + 1));
	gone[ngone].endpoint_id = ep->id;
	gone[ngone].forgotten = forgotten;
	gone[ngone++].seq = seq;
	outbox_parking_count_row(ep, seq, retry ? OUTBOX_ROW_RETRYING : OUTBOX_ROW_BLOCKED,
							 -1);
	if (forgotten)
		outbox_tally_count(ep, OUTBOX_COUNT_CANCELLED);
	else
	{
		outbox_parking_count_row(ep, seq, OUTBOX_ROW_DEAD, 1);
		outbox_tally_death(ep, "event is gone");
	}
	ep->place.dirty = true;
}

bool
outbox_parked_is_gone(int32 endpoint_id, int64 seq)
{
	for (int i = 0; i < ngone; i++)
		if (gone[i].endpoint_id == endpoint_id && gone[i].seq == seq)
			return true;
	return false;
}

int64 *
outbox_parked_add_gone(int32 endpoint_id, int64 *seqs, int *n)
{
	seqs = repalloc(seqs, sizeof(int64) * Max(*n + ngone, 1));
	for (int i = 0; i < ngone; i++)
		if (gone[i].endpoint_id == endpoint_id)
			seqs[(*n)++] = gone[i].seq;
	return seqs;
}

void
outbox_parked_empty(int32 endpoint_id, int64 seq)
{
	outbox_query("UPDATE outbox.parked SET status = 'cancelled', reason = 'forgotten',"
				 " key = NULL, last_error = NULL, next_attempt_at = NULL"
				 " WHERE endpoint_id = $1 AND seq = $2",
				 arg_int4(endpoint_id), arg_int8(seq));
}

void
outbox_parked_write_gone(void)
{
	for (int i = 0; i < ngone; i++)
	{
		if (gone[i].forgotten)
			outbox_parked_empty(gone[i].endpoint_id, gone[i].seq);
		else
		{
			outbox_query(
				"UPDATE outbox.parked SET status = 'dead', reason = 'event is gone',"
				" parked_at = pg_catalog.now() WHERE endpoint_id = $1 AND seq = $2",
				arg_int4(gone[i].endpoint_id), arg_int8(gone[i].seq));
		}
	}
}

void
outbox_parked_gone_written(void)
{
	ngone = 0;
}

#define LOADED \
	"seq, key, attempts, first_attempt_at, redelivery, batch," \
	" COALESCE(last_error = '" OUTBOX_UNSENT_WORDS "', false)"

/*
 * Fetches the events of the rows in SPI_tuptable, whose columns are LOADED.  After
 * an error nothing is loaded.
 */
static Loading
fetch_events(OutboxEndpoint *ep, bool retries)
{
	Loading l = {.found = (int) SPI_processed};
	int64  *seqs = palloc(sizeof(int64) * Max(l.found, 1));

	l.rows = palloc0(sizeof(*l.rows) * Max(l.found, 1));
	for (int i = 0; i < l.found; i++)
	{
		LoadedRow *r = &l.rows[l.n];

		outbox_read_row(i, into_int8(&r->seq), into_text(&r->key),
						into_int4(&r->attempts), into_time(&r->first_attempt_at),
						into_int2(&r->redelivery), into_int8(&r->group),
						into_bool(&r->unsent));
		if (retries || !outbox_operator_skip_follower(ep, r->seq, r->key))
			seqs[l.n++] = r->seq;
	}
	l.page = outbox_fetch(seqs, l.n, take_loaded, &l);
	return l;
}

/*
 * Makes deliveries of the rows that were not in memory, and returns their number.
 *
 * A lane advances when a row of it is gone.  So all others take their places first.
 */
static int
take_events(OutboxEndpoint *ep, bool retries, const Loading *l)
{
	for (int i = 0; i < l->n; i++)
	{
		OutboxEvent *event = l->rows[i].event;

		if (event != NULL && !event->forgotten)
			outbox_parking_load(ep, event, l->rows[i].attempts,
								l->rows[i].first_attempt_at, l->rows[i].unsent,
								l->rows[i].redelivery, retries, l->rows[i].group);
	}
	for (int i = 0; i < l->n; i++)
	{
		OutboxEvent *event = l->rows[i].event;

		if (event == NULL || event->forgotten)
		{
			event_is_gone(ep, l->rows[i].seq, retries, event != NULL);
			outbox_parking_load_failed(ep, l->rows[i].seq, l->rows[i].key, retries);
		}
	}
	outbox_page_unref(l->page);
	return l->n;
}

/*
 * Each row is looked up by itself.  For "seq = ANY ($2) ORDER BY seq" the planner
 * walks all rows of the endpoint, and with them dead ones that VACUUM may not
 * remove yet.  The status is compared afterwards, because otherwise it would take an
 * index of retries alone, in which it walks all retries of the endpoint.
 */
void
outbox_parked_load_retries(OutboxEndpoint *ep, const int64 *seqs, int n)
{
	Loading l;

	outbox_lock_indexes(OUTBOX_TABLE_PARKED, OUTBOX_TABLE_PARKED);
	outbox_plan_run("SELECT p.* FROM pg_catalog.unnest($2) w(seq) CROSS JOIN LATERAL"
					" (SELECT " LOADED ", status FROM outbox.parked"
					" WHERE endpoint_id = $1 AND seq = w.seq LIMIT 1) p"
					" WHERE p.status = 'retrying' ORDER BY w.seq",
					arg_int4(ep->id), arg_int8s(seqs, n));
	l = fetch_events(ep, true);
	(void) take_events(ep, true, &l);

	/* For rows that no longer exist: they are no retries any more. */
	for (int i = 0; i < n; i++)
		outbox_parking_load_failed(ep, seqs[i], NULL, true);
}

/*
 * Fetches the next followers of a lane, at most 'limit'.  False: there are none.  The search begins
 * at lane->first_parked, because below it there may be dead rows of deliveries that
 * were sent before, which VACUUM may not remove yet.
 */
static bool
fetch_followers(OutboxEndpoint *ep, const OutboxLane *lane, int limit, Loading *l)
{
	if (ep->config.ordering == OUTBOX_ORDER_STRICT)
		outbox_plan_run("SELECT " LOADED " FROM outbox.parked"
						" WHERE endpoint_id = $1 AND seq >= $3"
						" AND status = 'blocked' ORDER BY seq LIMIT $2",
						arg_int4(ep->id), arg_int8(limit), arg_int8(lane->first_parked));
	else
		outbox_plan_run("SELECT " LOADED " FROM outbox.parked"
						" WHERE endpoint_id = $1 AND key = $4 AND seq >= $3"
						" AND status = 'blocked' ORDER BY seq LIMIT $2",
						arg_int4(ep->id), arg_int8(limit), arg_int8(lane->first_parked),
						arg_text(lane->key));
	if (SPI_processed == 0)
		return false;
	*l = fetch_events(ep, false);
	return true;
}

/*
 * A lane is taken off the list after its rows are read, so that it stays there
 * after an error.
 */
void
outbox_parked_load_followers(OutboxEndpoint *ep, TimestampTz until)
{
	bool begun = false;

	while (!dlist_is_empty(&ep->queue->loading) &&
		   !(begun && GetCurrentTimestamp() >= until))
	{
		OutboxLane *lane = dlist_head_element(OutboxLane, loading_node,
											  &ep->queue->loading);
		int			limit = outbox_endpoint_at_once(ep);
		Loading		l;
		bool		found = fetch_followers(ep, lane, limit, &l);

		begun = true;

		(void) outbox_list_remove(&lane->loading_node);
		if (!found)
		{
			outbox_lane_no_followers(ep, lane);
			continue;
		}
		if (l.found < limit)
			lane->parked = false; /* these are all of them */
		if (take_events(ep, false, &l) == 0)
			outbox_lane_advance(ep, lane);
	}
}

/* Puts the row that the delivery gets: the columns of outbox.parked. */
static void
put_row(OutboxRows *rows, const OutboxEndpoint *ep, const OutboxDelivery *d)
{
	static const char *const status[] = {
		[OUTBOX_VERDICT_RETRY] = "retrying",
		[OUTBOX_VERDICT_BLOCKED] = "blocked",
		[OUTBOX_VERDICT_DEAD] = "dead",
	};
	bool dead = d->verdict == OUTBOX_VERDICT_DEAD;

	put_value(rows, Int32GetDatum(ep->id));
	put_value(rows, Int64GetDatum(d->seq));
	put_value(rows, UUIDPGetDatum(&d->event->id));
	put_text(rows, d->event->order_key);
	put_text(rows, status[d->verdict]);
	put_text(rows, dead ? d->reason : NULL);
	put_value(rows, Int32GetDatum(d->attempts));
	put_if(rows, d->first_attempt_at != 0, TimestampTzGetDatum(d->first_attempt_at));
	put_if(rows, d->verdict == OUTBOX_VERDICT_RETRY,
		   TimestampTzGetDatum(d->next_attempt_at));
	put_if(rows, d->last_status != 0, Int32GetDatum(d->last_status));
	put_text(rows, d->error);
	put_value(rows, TimestampTzGetDatum(GetCurrentTransactionStartTimestamp()));
	put_value(rows, Int16GetDatum(d->redelivery));
	put_if(rows, d->group != 0 && d->verdict != OUTBOX_VERDICT_BLOCKED,
		   Int64GetDatum(d->group));
}

static void
write_rows(const OutboxRows *rows)
{
	Oid	  type;
	Datum array = outbox_rows_array(outbox_table_oid(OUTBOX_TABLE_PARKED), 14, rows,
									&type);

	outbox_plan_run(
		"INSERT INTO outbox.parked AS p SELECT * FROM pg_catalog.unnest($1)"
		" ON CONFLICT (endpoint_id, seq) DO UPDATE SET status = excluded.status,"
		" reason = excluded.reason, attempts = excluded.attempts,"
		" first_attempt_at = excluded.first_attempt_at,"
		" next_attempt_at = excluded.next_attempt_at, last_status_code = CASE"
		" WHEN excluded.last_error IS NULL OR excluded.reason"
		" <> ALL ('{max_attempts,max_age,aborted by receiver}') THEN p.last_status_code"
		" ELSE excluded.last_status_code END,"
		" last_error = COALESCE(excluded.last_error, p.last_error),"
		" redelivery = excluded.redelivery, batch = excluded.batch, parked_at"
		" = CASE excluded.status WHEN 'dead' THEN excluded.parked_at ELSE p.parked_at END",
		arg_datum(type, array));
}

/*
 * Each row is looked up by itself: a join would be planned by statistics.  No other process
 * changes rows of these endpoints.
 */
static void
delete_rows(const Datum *ids, const int64 *seqs, int n)
{
	outbox_plan_run("DELETE FROM outbox.parked WHERE ctid = ANY (ARRAY(SELECT p.ctid"
					" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2))"
					" w(id, seq) CROSS JOIN LATERAL (SELECT q.ctid FROM outbox.parked q"
					" WHERE q.endpoint_id = w.id AND q.seq = w.seq LIMIT 1) p))",
					arg_datum(INT4ARRAYOID, outbox_array(ids, n, INT4OID)),
					arg_int8s(seqs, n));
}

void
outbox_parked_write(const List *endpoints)
{
	OutboxRows rows = {0};
	Datum	  *ids;
	int64	  *sent;
	int64	  *parked;
	int		   n = 0, nsent = 0, nparked = 0;
	ListCell  *cell;

	foreach (cell, endpoints)
		n += ((OutboxEndpoint *) lfirst(cell))->queue->nsettling;
	ids = palloc(sizeof(Datum) * Max(n, 1));
	sent = palloc(sizeof(int64) * Max(n, 1));
	parked = palloc(sizeof(int64) * Max(n, 1));
	foreach (cell, endpoints)
	{
		OutboxEndpoint *ep = lfirst(cell);

		for (OutboxDelivery *d = NULL;
			 (d = outbox_delivery_next(&ep->queue->settling, d)) != NULL;)
		{
			if (d->verdict == OUTBOX_VERDICT_DELIVERED)
			{
				ids[nsent] = Int32GetDatum(ep->id);
				sent[nsent++] = d->seq;
				continue;
			}
			put_row(&rows, ep, d);
			parked[nparked++] = d->seq;
		}
	}
	if (nsent > 0)
		delete_rows(ids, sent, nsent);
	if (nparked > 0)
		write_rows(&rows);
	outbox_kept_add(parked, nparked);
}
