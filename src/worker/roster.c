/*
 * roster.c
 *	  Owns the list of the worker's endpoints: which are loaded, which leave, and
 *	  which are loaded again.
 *
 * All settings are read from the tables whenever some have changed.  An endpoint
 * that has moved to another position, or has other lanes, is freed and loaded
 * again.  So there is only one way into memory, the one of a restart.
 */
#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "base/table_rows.h"
#include "endpoint/status.h"
#include "endpoint/subscribers.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/retention.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "store/endpoint_settings.h"
#include "store/parked.h"
#include "store/positions.h"
#include "worker/dispatch.h"
#include "worker/links.h"
#include "worker/loop.h"
#include "worker/publish.h"
#include "worker/reader.h"
#include "worker/roster.h"

static MemoryContext		  endpoint_cxt;
static OutboxEndpoint		 *meeting;	  /* the endpoint that is being loaded */
static MemoryContext		  others_cxt; /* holds the following two */
static OutboxOtherSubscriber *others;	  /* endpoints that other workers serve */
static int					  nothers;

void
outbox_roster_init(void)
{
	endpoint_cxt = AllocSetContextCreate(TopMemoryContext, "outbox endpoints",
										 ALLOCSET_DEFAULT_SIZES);
}

void
outbox_roster_busy(OutboxEndpoint *ep)
{
	if (!ep->member.busy)
	{
		ep->member.busy = true;
		dlist_push_tail(&outbox_loop.roster.busy, &ep->member.busy_node);
	}
	outbox_loop.traffic.refill_all = true;
}

static int
compare_id(const void *key, const void *element)
{
	int32				  id = *(const int32 *) key;
	const OutboxEndpoint *ep = *(OutboxEndpoint *const *) element;

	return id < ep->id ? -1 : id > ep->id;
}

OutboxEndpoint *
outbox_roster_find(int32 id)
{
	OutboxEndpoint **found;

	if (outbox_loop.roster.n == 0)
		return NULL;
	found = bsearch(&id, outbox_loop.roster.endpoints, outbox_loop.roster.n,
					sizeof(OutboxEndpoint *), compare_id);
	return found ? *found : NULL;
}

bool
outbox_roster_expects(int32 id)
{
	Datum args[1] = {Int32GetDatum(id)};

	return outbox_query("SELECT 1 FROM outbox.endpoint_settings"
						" WHERE endpoint_id OPERATOR(pg_catalog.=) $1",
						1, (Oid[]){INT4OID}, args, NULL) > 0;
}

/* Begins to count the backlog again, from the frontier on. */
static void
count_again(OutboxEndpoint *ep)
{
	ep->feed.counted = false;
	ep->feed.backlog = 0;
	outbox_cursor_copy(&ep->feed.counter, outbox_window_frontier(ep, &outbox_loop.head));
}

/*
 * Loads an endpoint that this worker did not have: its settings, position and
 * parked rows.
 */
static OutboxEndpoint *
load_endpoint(const OutboxEndpointRow *s)
{
	OutboxEndpoint *ep = outbox_endpoint_create(endpoint_cxt, s->id);
	OutboxPosition	p;

	meeting = ep;
	outbox_endpoint_settings_assign(ep, s);
	ep->config.generation = s->generation;
	ep->place.stored_version = outbox_endpoint_settings_subscription(s->id);

	if (!outbox_position_read(s->id, &p) || p.generation != s->generation)
	{
		/* What was counted still counts, at the new place in the log. */
		outbox_cursor_clear(&p.cursor);
		p.npending = 0;
		outbox_cursor_set(&p.cursor, s->start, NULL, 0);
		if (s->generation > 1)
			outbox_parked_forget(s->id, s->start);
	}
	ep->status.state_since = Max(ep->status.state_since, p.state_since);
	if (p.failing_since != 0)
		outbox_status_failing_since(ep, p.failing_since, p.settled_at);
	ep->status.failing_told = p.failing_told;
	if (p.backing_off)
		outbox_pace_reopen(&ep->pace, p.probes);
	ep->tally.delivered = p.delivered;
	ep->tally.failed_attempts = p.failed_attempts;
	memcpy(ep->tally.count, p.counters, sizeof(ep->tally.count));
	memcpy(ep->tally.shown, p.counters, sizeof(ep->tally.shown));
	ep->tally.shown[OUTBOX_COUNT_DELIVERED] = p.delivered;
	if (ep->tally.delivered > 0) /* else it is new, and its id may have been another
								  * endpoint's */
		outbox_tally_resume(ep);
	ep->tally.last_active_at = GetCurrentTimestamp();
	outbox_cursor_copy(&ep->feed.cursor, &p.cursor);
	if (outbox_reader_at_head(&ep->feed.cursor))
	{
		ep->feed.counted = true;
		ep->feed.attached = !ep->status.paused && !ep->status.disabled &&
			!ep->status.held_for;
		if (ep->feed.attached)
			outbox_cursor_clear(&ep->feed.cursor);
	}
	else
		count_again(ep);
	outbox_cursor_clear(&p.cursor);

	/*
	 * Parked rows are loaded first, because they may come before pending events of
	 * their lane.
	 */
	outbox_parked_load(ep);
	outbox_position_load_pending(ep, p.pending, p.npending);
	OUTBOX_CRASH_POINT("endpoint.loaded");
	outbox_roster_busy(ep);
	meeting = NULL;
	return ep;
}

typedef struct Reload
{
	OutboxEndpoint		 **list;
	int					   n;
	int					   max;
	OutboxOtherSubscriber *others;
	int					   nothers;
	int					   max_others;
	MemoryContext		   others_cxt;
	uint16				   weight[OUTBOX_SHARES];
} Reload;

static Reload reload; /* the current one, or the one that failed */

/* Notes what an endpoint of another worker subscribes to. */
static void
note_other(Reload *r, const OutboxEndpointRow *s)
{
	MemoryContext		   old = MemoryContextSwitchTo(r->others_cxt);
	OutboxOtherSubscriber *f;

	if (r->nothers == r->max_others)
	{
		r->max_others = Max(64, r->max_others * 2);
		r->others = r->others ?
			repalloc_huge(r->others, sizeof(OutboxOtherSubscriber) * r->max_others) :
			palloc(sizeof(OutboxOtherSubscriber) * r->max_others);
	}
	f = &r->others[r->nothers++];
	f->tenant = s->tenant ? pstrdup(s->tenant) : NULL;
	f->npatterns = s->npatterns;
	f->patterns = palloc(sizeof(char *) * Max(s->npatterns, 1));
	for (int i = 0; i < s->npatterns; i++)
		f->patterns[i] = pstrdup(s->patterns[i]);
	f->filter = NULL;
	if (s->filter)
	{
		f->filter = palloc(VARSIZE(s->filter));
		memcpy(f->filter, s->filter, VARSIZE(s->filter));
	}
	MemoryContextSwitchTo(old);
}

static void
apply_settings(void *arg, const OutboxEndpointRow *s)
{
	Reload		   *r = arg;
	OutboxEndpoint *ep = outbox_roster_find(s->id);
	int				share = outbox_share_of(s->id);
	bool			held = outbox_step_held(OUTBOX_STEP_RELOAD, s->id);

	r->weight[share] = Min(r->weight[share] + 1, PG_UINT16_MAX);
	if (held)
	{
		/* Its settings could not be read: it stays as it is, or unknown. */
		outbox_loop.roster.reload_at = Min(outbox_loop.roster.reload_at,
										   outbox_step_next_time());
		if (ep == NULL)
			return;
	}
	else if (!outbox_share_served(share))
	{
		note_other(r, s);
		if (ep == NULL)
			return;
		/* It is about to leave, so its settings do not matter here any more. */
	}
	else if (ep == NULL)
		ep = load_endpoint(s);
	else if (ep->config.generation != s->generation ||
			 ep->config.ordering != s->ordering ||
			 ep->config.block_on_dead != s->block_on_dead)
	{
		/* Another position, or other lanes: it has to be loaded again. */
		ep->member.recreate = true;
		ep->place.dirty = true;
		outbox_loop.roster.recreating = true;
		outbox_roster_busy(ep);
	}
	else if (ep->config.row_version != s->row_version ||
			 ep->config.keys_version != s->keys_version ||
			 ep->config.previous_until != s->previous_until)
	{
		bool other = ep->config.version != s->version;

		if (other || s->paused || s->disabled)
			outbox_window_drop(ep, &outbox_loop.head);
		outbox_endpoint_settings_assign(ep, s);
		if (other)
			count_again(ep);
		if (ep->status.held_for)
			outbox_window_drop(ep, &outbox_loop.head);
		ep->place.dirty = true;
		outbox_roster_busy(ep);
	}
	ep->member.seen = true;

	/* Settings are read again when a rotation of secrets ends. */
	outbox_loop.roster.reload_at = Min(outbox_loop.roster.reload_at,
									   held ? DT_NOEND : s->previous_until);
	if (r->n == r->max)
	{
		r->max = Max(64, r->max * 2);
		r->list = r->list ?
			repalloc_huge(r->list, sizeof(OutboxEndpoint *) * r->max) :
			MemoryContextAlloc(endpoint_cxt, sizeof(OutboxEndpoint *) * r->max);
	}
	r->list[r->n++] = ep;
}

/*
 * Rows that dropped endpoints left behind.  outbox.parked is large while another
 * endpoint is down.  So for endpoints that were served here the rows are found by
 * their id.
 */
#define ORPHAN_OF(id) \
	" NOT EXISTS (SELECT 1 FROM outbox.endpoint_settings s" \
	" WHERE s.endpoint_id OPERATOR(pg_catalog.=) " id ")"
#define ORPHAN ORPHAN_OF("p.endpoint_id")

static void
delete_parked(int32 id)
{
	Datum args[1] = {Int32GetDatum(id)};

	outbox_query("DELETE FROM outbox.parked p"
				 " WHERE p.endpoint_id OPERATOR(pg_catalog.=) $1 AND" ORPHAN,
				 1, (Oid[]){INT4OID}, args, NULL);
}

static void
delete_orphans(bool parked)
{
	outbox_query("DELETE FROM outbox.subscriptions p WHERE" ORPHAN, 0, NULL, NULL, NULL);
	outbox_query("DELETE FROM outbox.endpoint_secrets p WHERE" ORPHAN, 0, NULL, NULL,
				 NULL);

	/* The index says which endpoints have rows, however many rows these are. */
	if (parked)
		outbox_query(
			"WITH RECURSIVE e(id) AS ((SELECT p.endpoint_id FROM outbox.parked p"
			" ORDER BY p.endpoint_id LIMIT 1) UNION ALL SELECT (SELECT p.endpoint_id"
			" FROM outbox.parked p WHERE p.endpoint_id OPERATOR(pg_catalog.>) e.id"
			" ORDER BY p.endpoint_id LIMIT 1) FROM e WHERE e.id IS NOT NULL),"
			" o(id) AS MATERIALIZED (SELECT e.id FROM e WHERE" ORPHAN_OF(
				"e.id") ")"
						" DELETE FROM outbox.parked p USING o"
						" WHERE p.endpoint_id OPERATOR(pg_catalog.=) o.id",
			0, NULL, NULL, NULL);
}

static void
forget_endpoint(OutboxEndpoint *ep)
{
	outbox_dispatch_cancel(ep, DT_NOEND);
	outbox_link_close(ep);
	outbox_step_forget(ep->id);
	if (ep->member.busy)
		dlist_delete(&ep->member.busy_node);
	if (ep->member.dropped)
		outbox_stats_forget(MyDatabaseId, ep->id);
	else
		outbox_publish_one(ep, GetCurrentTimestamp());
	outbox_endpoint_free(ep);
}

static void
tell_reader(void)
{
	outbox_reader_forget_turn();
	outbox_subscribers_set(outbox_loop.roster.endpoints, outbox_loop.roster.n, others,
						   nothers);
}

/* 'tidy' is for endpoints that were dropped while no worker had them. */
bool
outbox_roster_reload(bool tidy)
{
	Reload			*r = &reload;
	OutboxEndpoint **old = outbox_loop.roster.endpoints;
	bool			 dropped = false;

	if (!outbox_txn_begin(true))
		return false;
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_KEPT_EVENTS);
	memset(r, 0, sizeof(Reload));
	r->others_cxt = AllocSetContextCreate(CurTransactionContext, "outbox others",
										  ALLOCSET_DEFAULT_SIZES);
	outbox_loop.roster.reload_at = DT_NOEND;
	for (int i = 0; i < outbox_loop.roster.n; i++)
		outbox_loop.roster.endpoints[i]->member.seen = false;
	outbox_query("SELECT pg_catalog.count(*) FROM outbox.endpoint_settings", 0, NULL,
				 NULL, NULL);
	outbox_parked_share_room(row_int8(fetch_row(0), 0));
	outbox_endpoint_settings_read(apply_settings, r);
	if (outbox_serves_database())
		outbox_retention_configure();
	outbox_step_blame(0);
	for (int i = 0; i < outbox_loop.roster.n; i++)
		if (!old[i]->member.seen)
		{
			old[i]->member.dropped = true;
			delete_parked(old[i]->id);
			dropped = true;
		}
	if (dropped || tidy)
		delete_orphans(tidy);
	MemoryContextSetParent(r->others_cxt, TopMemoryContext);
	OUTBOX_CRASH_POINT("reload.read");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("reload.committed");

	for (int i = 0; i < outbox_loop.roster.n; i++)
		if (old[i]->member.dropped)
			forget_endpoint(old[i]);
	outbox_loop.roster.endpoints = r->list;
	outbox_loop.roster.n = r->n;
	for (int i = 0; i < r->n; i++)
		if (!outbox_step_held(OUTBOX_STEP_RELOAD, r->list[i]->id))
			outbox_step_passed(OUTBOX_STEP_RELOAD, r->list[i]->id);
	r->list = NULL;
	r->n = 0;
	if (old)
		pfree(old);
	if (others_cxt)
		MemoryContextDelete(others_cxt);
	others_cxt = r->others_cxt;
	others = r->others;
	nothers = r->nothers;
	tell_reader();
	if (outbox_serves_database())
		outbox_shares_weigh(r->weight);
	outbox_loop.traffic.refill_all = true;
	return true;
}

/*
 * Endpoints that were loaded by the failed reload are freed.  The next reload loads
 * them again.
 */
void
outbox_roster_reload_failed(void)
{
	for (int i = 0; i < outbox_loop.roster.n; i++)
		outbox_loop.roster.endpoints[i]->member.dropped = false;
	for (int i = 0; i < reload.n; i++)
		if (outbox_roster_find(reload.list[i]->id) == NULL)
			forget_endpoint(reload.list[i]);
	if (reload.list)
		pfree(reload.list);
	reload.list = NULL;
	reload.n = 0;
	if (meeting)
		outbox_endpoint_free(meeting);
	meeting = NULL;
	outbox_loop.roster.reload_at = 0;
}

/*
 * Nothing more is sent to endpoints that another worker is to serve.  Like any
 * other that is loaded again they need a position of their own first, because the
 * shared one moves on without them.
 */
void
outbox_roster_leave(void)
{
	for (int i = 0; i < outbox_loop.roster.n; i++)
	{
		OutboxEndpoint *ep = outbox_loop.roster.endpoints[i];

		if (outbox_serves_endpoint(ep->id) || ep->member.recreate)
			continue;
		ep->member.recreate = true;
		ep->place.dirty = true;
		outbox_loop.roster.recreating = true;
		outbox_roster_busy(ep);
	}
}

/* Gives back the shares whose endpoints have all been freed. */
static void
give_back_shares(void)
{
	bool in_use[OUTBOX_SHARES] = {false};

	if (!outbox_shares_leaving())
		return;
	for (int i = 0; i < outbox_loop.roster.n; i++)
		in_use[outbox_share_of(outbox_loop.roster.endpoints[i]->id)] = true;
	outbox_shares_give_back(in_use);
}

/* True if nothing is in flight, and everything that happened is stored. */
static bool
may_leave(const OutboxEndpoint *ep)
{
	return ep->queue.nin_flight == 0 && !ep->status.unstorable;
}

void
outbox_roster_recreate(void)
{
	int n = 0;

	if (!outbox_loop.roster.recreating)
	{
		give_back_shares();
		return;
	}
	outbox_loop.roster.recreating = false;
	for (int i = 0; i < outbox_loop.roster.n; i++)
	{
		if (outbox_loop.roster.endpoints[i]->member.recreate &&
			!may_leave(outbox_loop.roster.endpoints[i]))
			outbox_loop.roster.recreating = true;
		if (outbox_loop.roster.endpoints[i]->member.recreate &&
			may_leave(outbox_loop.roster.endpoints[i]))
		{
			forget_endpoint(outbox_loop.roster.endpoints[i]);
			outbox_loop.roster.reload_at = 0;
		}
		else
			outbox_loop.roster.endpoints[n++] = outbox_loop.roster.endpoints[i];
	}
	outbox_loop.roster.n = n;
	if (outbox_loop.roster.reload_at == 0)
		tell_reader();
	give_back_shares();
}
