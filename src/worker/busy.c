/*
 * busy.c
 *	  Owns which endpoints have something to do now, and when the others will.
 *
 * An endpoint that has nothing to do costs nothing, whatever their number.  These lists
 * hold endpoints by the work that they have:
 *
 *	  busy		examined by the steps of each round
 *	  open		has something to settle or to publish
 *	  unsettled	visited by the next settle (settle.c)
 *	  turns		wait for a page of the log, or for the shared position, in this order
 *	  waiting	a heap: is added to 'busy' when its time comes
 *
 * An event, an answer, a command or new settings add an endpoint to the first three.  A
 * settle adds the endpoints that it wrote to the first two.  The steps of that round do
 * the work that can be done.  An endpoint leaves 'busy' when the rest waits for one of
 * these things, for its turn, or for a time (publish.c).
 */
#include "base/outbox.h"

#include "worker/busy.h"
#include "worker/loop.h"

static int
compare_time(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const OutboxEndpoint *x = pairingheap_const_container(OutboxEndpoint,
														  member.waiting_node, a);
	const OutboxEndpoint *y = pairingheap_const_container(OutboxEndpoint,
														  member.waiting_node, b);

	return x->member.waits_until == y->member.waits_until ? 0 :
		x->member.waits_until < y->member.waits_until	  ? 1 :
															-1;
}

static pairingheap waiting = {.ph_compare = compare_time};
static dlist_head  turns[OUTBOX_TURNS] = {DLIST_STATIC_INIT(turns[OUTBOX_TURN_READ]),
										  DLIST_STATIC_INIT(turns[OUTBOX_TURN_MEMORY]),
										  DLIST_STATIC_INIT(turns[OUTBOX_TURN_ALONG]),
										  DLIST_STATIC_INIT(turns[OUTBOX_TURN_COUNT]),
										  DLIST_STATIC_INIT(turns[OUTBOX_TURN_AHEAD]),
										  DLIST_STATIC_INIT(turns[OUTBOX_TURN_JUDGE]),
										  DLIST_STATIC_INIT(turns[OUTBOX_TURN_SHARE])};

/* Ids of endpoints that rest since they were loaded, and do not follow the shared position. */
static List *loaded;

/* They are woken for that until so many are open.  A settle takes so many at least. */
#define LOADED_OPEN (128 + outbox_loop.roster.n / 64)
#define LOADED_AT_LEAST 16

static void
stop_waiting(OutboxEndpoint *ep)
{
	if (ep->member.waits_until == 0)
		return;
	pairingheap_remove(&waiting, &ep->member.waiting_node);
	ep->member.waits_until = 0;
}

static void
list(OutboxEndpoint *ep)
{
	if (outbox_list_add(&outbox_loop.roster.busy, &ep->lists->busy_node))
		stop_waiting(ep);
	outbox_loop.roster.nopen += outbox_list_add(&outbox_loop.roster.open,
												&ep->lists->open_node);
}

static void
examine(OutboxEndpoint *ep)
{
	list(ep);
	ep->lists->touched = ep->lists->unpublished = true;
	outbox_loop.traffic.refill_all = true;
}

void
outbox_busy_add(OutboxEndpoint *ep)
{
	outbox_endpoint_wake(ep);
	examine(ep);
	outbox_settle_add(&outbox_loop.to_settle, ep);
}

void
outbox_busy_settle(OutboxEndpoint *ep)
{
	list(ep);
	outbox_settle_add(&outbox_loop.to_settle, ep);
}

void
outbox_busy_wait(OutboxEndpoint *ep, TimestampTz until)
{
	Assert(outbox_is_listed(&ep->lists->busy_node));
	(void) outbox_list_remove(&ep->lists->busy_node);
	if (until == DT_NOEND)
		return;
	ep->member.waits_until = until;
	pairingheap_add(&waiting, &ep->member.waiting_node);
}

void
outbox_busy_close(OutboxEndpoint *ep)
{
	if (!outbox_list_remove(&ep->lists->open_node))
		return;
	outbox_loop.roster.nopen--;
	outbox_settle_remove(ep);
}

OutboxEndpoint *
outbox_busy_next_open(void)
{
	dlist_node *node = dlist_pop_head_node(&outbox_loop.roster.open);

	dlist_push_tail(&outbox_loop.roster.open, node);
	return outbox_listed(open_node, node);
}

void
outbox_busy_forget(OutboxEndpoint *ep)
{
	(void) outbox_list_remove(&ep->lists->busy_node);
	stop_waiting(ep);
	outbox_busy_close(ep);
	outbox_settle_remove(ep);
	for (int turn = 0; turn < OUTBOX_TURNS; turn++)
		outbox_turn_remove(turn, ep);
}

TimestampTz
outbox_busy_next_time(void)
{
	return pairingheap_is_empty(&waiting) ?
		DT_NOEND :
		pairingheap_container(OutboxEndpoint, member.waiting_node,
							  pairingheap_first(&waiting))
			->member.waits_until;
}

void
outbox_busy_wake(TimestampTz now)
{
	while (outbox_busy_next_time() <= now)
	{
		OutboxEndpoint *ep = pairingheap_container(OutboxEndpoint, member.waiting_node,
												   pairingheap_first(&waiting));

		ep->member.published_quiet = false; /* it is published at once */
		outbox_busy_add(ep);
	}
}

void
outbox_busy_add_settled(void)
{
	OutboxToSettle	  *all = &outbox_loop.to_settle;
	dlist_mutable_iter iter;

	/* They are the first on the list. */
	dlist_foreach_modify(iter, &all->unsettled)
	{
		OutboxEndpoint *ep = outbox_listed(settle_node, iter.cur);

		if (all->nwritten == 0)
			break;
		if (!ep->place.written)
			continue;
		ep->place.written = false;
		all->nwritten--;
		outbox_settle_leave(all, ep);
		examine(ep);
	}
	all->nwritten = 0; /* others are freed */
}

void
outbox_turn_add(OutboxTurn turn, OutboxEndpoint *ep)
{
	outbox_loop.turns[turn] += outbox_list_add(&turns[turn], &ep->lists->turn_node[turn]);
}

void
outbox_turn_remove(OutboxTurn turn, OutboxEndpoint *ep)
{
	outbox_loop.turns[turn] -= outbox_list_remove(&ep->lists->turn_node[turn]);
}

/* If it needs no page, it leaves these lists by itself. */
void
outbox_turn_again(OutboxEndpoint *ep)
{
	for (OutboxTurn turn = 0; turn < OUTBOX_TURN_SHARE; turn++)
		outbox_turn_remove(turn, ep);
	outbox_turn_add(OUTBOX_TURN_READ, ep);
	outbox_turn_add(OUTBOX_TURN_COUNT, ep);
}

void
outbox_turn_all_again(OutboxTurn turn)
{
	OutboxEndpoint *ep;

	while ((ep = outbox_turn_first(turn)) != NULL)
		outbox_turn_again(ep);
}

OutboxEndpoint *
outbox_turn_first(OutboxTurn turn)
{
	if (outbox_loop.turns[turn] == 0)
		return NULL;
	return outbox_listed(turn_node[turn], dlist_head_node(&turns[turn]));
}

OutboxEndpoint *
outbox_turn_next(OutboxTurn turn, OutboxEndpoint *ep)
{
	if (!dlist_has_next(&turns[turn], &ep->lists->turn_node[turn]))
		return NULL;
	return outbox_listed(turn_node[turn],
						 dlist_next_node(&turns[turn], &ep->lists->turn_node[turn]));
}

/*
 * An endpoint that was loaded while nothing was to be done for it rests already.  It is
 * woken for the settle that lets it follow the shared position, few at a time, so that many
 * that were just made take little memory.
 */
void
outbox_busy_note_loaded(const OutboxEndpoint *ep)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	if (outbox_endpoint_rests(ep) && !ep->place.shared)
		loaded = lappend_int(loaded, ep->id);
	MemoryContextSwitchTo(old);
}

bool
outbox_busy_some_share(void)
{
	return outbox_loop.turns[OUTBOX_TURN_SHARE] > 0 ||
		(loaded != NIL && outbox_loop.roster.nopen < LOADED_OPEN);
}

int
outbox_busy_wake_loaded(void)
{
	int n = Min(list_length(loaded),
				Max(LOADED_OPEN - outbox_loop.roster.nopen, LOADED_AT_LEAST));

	for (int i = 0; i < n; i++)
	{
		OutboxEndpoint *ep = outbox_loop_find(llast_int(loaded));

		loaded = list_delete_last(loaded);
		if (ep && outbox_endpoint_rests(ep) && !ep->place.shared)
			outbox_busy_add(ep);
	}
	return n;
}

void
outbox_turn_last(OutboxTurn turn, OutboxEndpoint *ep)
{
	if (outbox_list_remove(&ep->lists->turn_node[turn]))
		(void) outbox_list_add(&turns[turn], &ep->lists->turn_node[turn]);
}
