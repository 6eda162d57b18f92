/*
 * settle.c
 *	  Writes outcomes: one transaction for what happened since the last one,
 *	  attempts, parked deliveries and positions together.
 *
 * The transaction commits asynchronously.  Losing it costs duplicates, of what
 * was delivered since, and never an event: a position that is not stored is
 * only read again.  What belongs together is in one transaction, so that no
 * crash can leave a position without the parked rows it relies on.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "attempts.h"
#include "crash_point.h"
#include "notice.h"
#include "parked.h"
#include "plan.h"
#include "positions.h"
#include "session.h"
#include "settle.h"
#include "shares.h"

/* An endpoint that did nothing for so long follows the shared position. */
#define IDLE_AFTER (1 * USECS_PER_SEC)

/* Those that come to rest together do not hold up a settle. */
#define SHARE_AT_ONCE 500

/*
 * How often the shared position and the time of the log are noted: while
 * events come, and when only other transactions move the snapshot on.
 */
#define SHARED_EVERY (1 * USECS_PER_SEC)
#define SHARED_EVERY_IDLE (60 * USECS_PER_SEC)

static OutboxDatabase *db;
static int	share_budget;		/* that may begin to do so with this settle */
static int64 shared_tick;		/* as last written */
static int64 shared_seq;
static TimestampTz shared_at;

void
outbox_settle_init(OutboxDatabase *database, int64 last_shared_tick)
{
	db = database;
	shared_tick = last_shared_tick;
	outbox_attempts_init(db);
	outbox_positions_init(db);
}

/* The subscription holds from here on: an event is judged by its place. */
static void
write_subscription(OutboxEndpoint *ep, const OutboxCursor *c)
{
	Datum	   *topics = palloc(sizeof(Datum) * Max(ep->npatterns, 1));
	Datum		args[7];
	char		nulls[] = "       ";

	for (int i = 0; i < ep->npatterns; i++)
		topics[i] = CStringGetTextDatum(ep->patterns[i]);
	args[0] = Int32GetDatum(ep->id);
	args[1] = Int64GetDatum(ep->version);
	args[2] = PointerGetDatum(construct_array(topics, ep->npatterns, TEXTOID, -1,
											  false, TYPALIGN_INT));
	args[3] = outbox_snapshot_datum(c->done);
	if (c->under)
		args[4] = outbox_snapshot_datum(c->under);
	else
		nulls[4] = 'n';
	args[5] = Int64GetDatum(c->last_seq);
	args[6] = PointerGetDatum(ep->filter);
	if (ep->filter == NULL)
		nulls[6] = 'n';
	outbox_query("INSERT INTO outbox.subscriptions"
				 " (endpoint_id, version, topics, done, under, last_seq, filter)"
				 " VALUES ($1, $2, $3, $4, $5, $6, $7)"
				 " ON CONFLICT (endpoint_id, version) DO NOTHING",
				 7, (Oid[]) {INT4OID, INT8OID, TEXTARRAYOID,
				 PG_SNAPSHOTOID, PG_SNAPSHOTOID, INT8OID, JSONPATHOID},
				 args, nulls);
	ep->stored_version = ep->version;
}

/*
 * The receiver asked to be disabled.  Somebody who alters the endpoint at this
 * moment holds its row: then it is written with the next settle.
 */
static void
write_state(OutboxEndpoint *ep)
{
	Datum		args[3] = {Int32GetDatum(ep->id), CStringGetTextDatum(ep->reason),
		TimestampTzGetDatum(ep->state_since)};

	if (outbox_query("UPDATE outbox.endpoint_settings SET state = 'disabled',"
					 " reason = $2, state_since = $3 WHERE endpoint_id"
					 " OPERATOR(pg_catalog.=) (SELECT endpoint_id"
					 " FROM outbox.endpoint_settings WHERE endpoint_id"
					 " OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)",
					 3, (Oid[]) {INT4OID, TEXTOID, TIMESTAMPTZOID}, args, NULL) > 0)
		ep->state_dirty = false;
}

/*
 * One that is to be left, or read anew, stays where it is: the shared position
 * moves on without it.
 */
static bool
may_share(OutboxEndpoint *ep, TimestampTz now)
{
	return ep->attached && !ep->shared && !ep->recreate && ep->window_count == 0 &&
		ep->nheld == 0 && ep->nsettling == 0 && share_budget > 0 &&
		now - ep->last_active_at > IDLE_AFTER;
}

bool
outbox_settle(dlist_head *busy, const OutboxCursor *head, bool final)
{
	OutboxPositions p;
	dlist_iter	iter;
	bool		share = false;

	if (!(outbox_notice_wanted(busy) ? outbox_begin_to_emit() : outbox_begin(true)))
		return false;
	OUTBOX_CRASH_POINT("settle.begin");

	/* Who is parked here gets his row now: others rely on finding it. */
	dlist_foreach(iter, busy)
		outbox_endpoint_park_followers(dlist_container(OutboxEndpoint, busy_node,
													   iter.cur));

	outbox_positions_begin(&p);
	share_budget = SHARE_AT_ONCE;
	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, busy_node, iter.cur);
		const OutboxCursor *frontier;
		bool		disabled;

		if (ep->dropped)
			continue;
		frontier = outbox_endpoint_frontier(ep, head);
		outbox_parked_write(ep);
		OUTBOX_CRASH_POINT("settle.parked");
		disabled = ep->state_dirty;
		if (disabled)
			write_state(ep);
		outbox_notice_write(ep, disabled && !ep->state_dirty);
		if (ep->stored_version != ep->version)
			write_subscription(ep, frontier);
		OUTBOX_CRASH_POINT("settle.subscribed");

		/*
		 * The shared position moves on with the head: only who has nothing left
		 * before it may follow.
		 */
		if (ep->shared && (ep->window_count > 0 || ep->nheld > 0 ||
						   ep->nsettling > 0 || !ep->attached))
			ep->dirty = true;
		if (may_share(ep, p.now))
		{
			ep->shared = true;
			ep->dirty = true;
			share = true;
			share_budget--;
		}
		else if (ep->dirty)
			ep->shared = false;
		if (ep->dirty)
			outbox_positions_add(&p, ep, frontier);
	}

	if (share || outbox_settle_wants_head(head, p.now) ||
		(head->done->number != shared_tick &&
		 (final || p.now - shared_at > SHARED_EVERY_IDLE)))
	{
		outbox_positions_add(&p, NULL, head);
		if (head->done->number != shared_tick && outbox_serves_database())
			outbox_positions_write_tick(head->done, (int) pg_atomic_read_u32(&db->piece));
		shared_tick = head->done->number;
		shared_seq = head->done->seq_high;
		shared_at = p.now;
	}
	outbox_positions_write(&p);
	OUTBOX_CRASH_POINT("settle.positions");
	outbox_parked_write_gone();
	outbox_attempts_write();

	OUTBOX_CRASH_POINT("settle.written");
	outbox_commit();
	OUTBOX_CRASH_POINT("settle.committed");

	outbox_attempts_written();
	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, busy_node, iter.cur);

		outbox_endpoint_settled(ep);
		outbox_parked_keep_room(ep);
	}
	return true;
}

bool
outbox_settle_wants_head(const OutboxCursor *head, TimestampTz now)
{
	return head->done->number != shared_tick && head->done->seq_high != shared_seq &&
		now - shared_at > SHARED_EVERY;
}
