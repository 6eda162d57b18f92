/*
 * roster.c
 *	  Owns the list of the worker's endpoints: which are loaded, which leave, and
 *	  which are loaded again.
 *
 * An endpoint that has moved to another position, or has other lanes, is freed and
 * loaded again.  So there is only one way into memory, the one of a restart (reload.c).
 */
#include "base/outbox.h"

#include "base/query.h"
#include "endpoint/subscribers.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "server/shares.h"
#include "worker/busy.h"
#include "worker/challenges.h"
#include "worker/dispatch.h"
#include "worker/links.h"
#include "worker/loop.h"
#include "worker/publish.h"
#include "worker/roster.h"
#include "worker/slots.h"

MemoryContext outbox_roster_cxt;

static List *to_load; /* ids of endpoints that were freed to be loaded again */

void
outbox_roster_init(void)
{
	outbox_roster_cxt = AllocSetContextCreate(TopMemoryContext, "outbox endpoints",
											  ALLOCSET_DEFAULT_SIZES);
}

bool
outbox_roster_expects(int32 id)
{
	return outbox_plan_run("SELECT 1 FROM outbox.endpoint_settings"
						   " WHERE endpoint_id = $1",
						   arg_int4(id)) > 0;
}

void
outbox_roster_forget(OutboxEndpoint *ep)
{
	outbox_subscribers_remove(ep);
	outbox_slots_leave(ep);
	outbox_challenge_end(ep);
	outbox_link_close(ep);
	outbox_step_forget(ep->id);
	outbox_busy_forget(ep);
	if (ep->member.dropped)
	{
		if (ep->tenant == NULL)
			outbox_step_not_stuck(ep->id);
		outbox_stats_forget(MyDatabaseId, ep->id);
	}
	else if (!outbox_endpoint_rests(ep))
		outbox_publish_one(ep, GetCurrentTimestamp());
	outbox_endpoint_free(ep);
}

/* In the order of their ids.  New endpoints mostly have higher ids than all others. */
void
outbox_roster_add(OutboxEndpoint *ep)
{
	OutboxLoopRoster *r = &outbox_loop.roster;
	int				  place = outbox_loop_place_of(ep->id);

	outbox_room(r->endpoints, r->n, r->max, outbox_roster_cxt);
	memmove(r->endpoints + place + 1, r->endpoints + place,
			sizeof(OutboxEndpoint *) * (r->n - place));
	r->endpoints[place] = ep;
	r->n++;
}

void
outbox_roster_wake_all(bool stuck)
{
	for (int i = 0; i < outbox_loop.roster.n; i++)
	{
		OutboxEndpoint *ep = outbox_loop.roster.endpoints[i];

		if (stuck)
			ep->status.stuck_until = 0;
		if (!outbox_endpoint_rests(ep))
			outbox_busy_add(ep);
	}
}

/*
 * It reads nothing more: its settings here may be old, and its place in the log would
 * pass events that the new ones want.
 */
void
outbox_roster_load_again(OutboxEndpoint *ep)
{
	if (ep->member.recreate)
		return;
	outbox_busy_add(ep);
	outbox_window_drop(ep, &outbox_loop.head);
	ep->member.recreate = true;
	ep->place.dirty = true;
	outbox_loop.roster.recreating = true;
}

bool
outbox_roster_lingers(OutboxEndpoint *ep)
{
	if (ep->queue->nin_flight == 0)
		return false;
	outbox_subscribers_remove(ep);
	outbox_roster_load_again(ep);
	return true;
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

		if (!outbox_serves_endpoint(ep->id))
			outbox_roster_load_again(ep);
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

/*
 * True if nothing is in flight, and everything that happened is stored.  Nothing is stored
 * of an endpoint that was dropped.
 */
static bool
may_leave(const OutboxEndpoint *ep)
{
	return ep->queue->nin_flight == 0 && (ep->member.dropped || !ep->status.unstorable);
}

void
outbox_roster_load_later(int32 id)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	to_load = lappend_int(to_load, id);
	MemoryContextSwitchTo(old);
}

const List *
outbox_roster_to_load(void)
{
	return to_load;
}

void
outbox_roster_loaded(bool all, const List *ids)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	List		 *left = all ? NIL : list_difference_int(to_load, ids);

	list_free(to_load);
	to_load = left;
	MemoryContextSwitchTo(old);
}

void
outbox_roster_cancel(TimestampTz before)
{
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
		if (ep->member.recreate)
			outbox_dispatch_cancel(ep, before);
}

void
outbox_roster_remove(const List *leaving)
{
	OutboxLoopRoster *r = &outbox_loop.roster;
	int				 *places = palloc(sizeof(int) * list_length(leaving));
	int				  n = 0;
	const ListCell	 *cell;

	foreach (cell, leaving)
		places[n++] = outbox_loop_place_of(((OutboxEndpoint *) lfirst(cell))->id);
	while (n > 0)
		r->endpoints[places[--n]] = NULL;
	for (int i = 0; i < r->n; i++)
		if (r->endpoints[i])
			r->endpoints[n++] = r->endpoints[i];
	r->n = n;
	pfree(places);
	foreach (cell, leaving)
	{
		OutboxEndpoint *ep = lfirst(cell);

		if (!ep->member.dropped)
			outbox_roster_load_later(ep->id);
		outbox_roster_forget(ep);
	}
}

/* An endpoint that is to be loaded again is busy until then. */
void
outbox_roster_recreate(void)
{
	OutboxLoopRoster *r = &outbox_loop.roster;
	List			 *leaving = NIL;

	if (r->recreating)
	{
		r->recreating = false;
		for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
			if (ep->member.recreate && may_leave(ep))
				leaving = lappend(leaving, ep);
			else
				r->recreating |= ep->member.recreate;
	}
	if (leaving)
		outbox_roster_remove(leaving);
	give_back_shares();
}
