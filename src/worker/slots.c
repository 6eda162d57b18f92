/*
 * slots.c
 *	  Owns which endpoint sends next when there is not enough for all: slots,
 *	  memory, time in a round, or the limits of a tenant.
 *
 * An endpoint that has something to send and cannot send it is on one of four heaps:
 *
 *	  waiting		of the worker, or of its tenant, in the order of flow.c
 *	  no_memory		its request did not fit, and it is not its turn to ask again
 *	  unsettled		too much of it has ended that is not settled
 *	  tenants_held	with its tenant, which may not send more before a time or an answer
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "base/settings.h"
#include "store/unsettled.h"
#include "worker/loop.h"
#include "worker/slots.h"

/* Descriptors that tables, lookups and transports may need besides one for each request. */
#define FILES_OF_OTHERS 256

/* µs of work that a request may take, and the bytes of its body that may take one more. */
#define WORK_OF_REQUEST 4000
#define BYTES_OF_WORK 100

/* So many endpoints whose requests did not fit are asked again in one round. */
#define ASKED_AGAIN 8

/* The lack of an endpoint that has to wait because its requests took too much work. */
#define LACKS_TIME "its requests take too much of the worker's time"

static OutboxFlow  all;
static pairingheap no_memory = {.ph_compare = outbox_flow_compare_held};
static pairingheap unsettled = {.ph_compare = outbox_flow_compare_held};
static pairingheap tenants_held = {.ph_compare = outbox_flow_compare_held};
static int64	   turn;		/* of 'no_memory' that was asked again last */
static int		   beside;		/* first requests of endpoints whose tenant has others */
static int		   may_be_open; /* requests that descriptors allow */
static bool		   firsts;		/* true if there is enough for one of each endpoint */

void
outbox_slots_init(void)
{
	int files = outbox_open_files();

	may_be_open = Max(files - FILES_OF_OTHERS, files / 2);
	outbox_flow_init(&all, &firsts);
}

static OutboxFlow *
flow_above(OutboxEndpoint *ep)
{
	OutboxFlow *f = ep->tenant ? &ep->tenant->flow : &all;

	if (f != &all && f->parent == NULL)
		outbox_flow_join(f, &all);
	return f;
}

static OutboxFlow *
flow_of(OutboxEndpoint *ep)
{
	OutboxFlow *f = &ep->lists->flow;

	if (f->parent == NULL)
		outbox_flow_join(f, flow_above(ep));
	return f;
}

/* An endpoint that rests has no flow.  Its tenant has one. */
static OutboxFlow *
payer_of(OutboxEndpoint *ep)
{
	return outbox_endpoint_rests(ep) ? flow_above(ep) : flow_of(ep);
}

int
outbox_slots_in_flight(void)
{
	return all.in_flight;
}

/*
 * Each endpoint has one, while descriptors allow that.  The slots of a tenant with many
 * endpoints take nothing away from the slots that all share: they count as one.
 */
bool
outbox_slots_free_for(const OutboxEndpoint *ep)
{
	return all.in_flight < may_be_open &&
		(ep->lists->flow.in_flight == 0 ||
		 all.in_flight - beside < outbox_worker_max_in_flight);
}

bool
outbox_slots_wanted(void)
{
	return !pairingheap_is_empty(&all.waiting) || !pairingheap_is_empty(&no_memory);
}

/* They go on in the order in which they came, except one whose own deliveries are settled. */
static void
hold_for_settle(OutboxFlow *f)
{
	static int64 order;

	outbox_flow_hold(f, &unsettled, order++);
}

/* The endpoints of a tenant have one turn after the other, so tenants are asked in turn. */
static void
hold_for_memory(OutboxFlow *f)
{
	OutboxFlow *share = f->parent == &all ? f : f->parent;

	share->turn = Max(share->turn, turn) + 1;
	outbox_flow_hold(f, &no_memory, share->turn);
}

void
outbox_slots_wait(OutboxEndpoint *ep, OutboxLack lack, TimestampTz now)
{
	OutboxFlow *f = flow_of(ep);

	outbox_flow_wait(f, now);
	if (lack == OUTBOX_LACKS_MEMORY)
		hold_for_memory(f);
	else if (lack == OUTBOX_LACKS_SETTLE)
		hold_for_settle(f);
	else
		outbox_flow_release(f); /* something has happened to it */
}

bool
outbox_slots_more(bool begun)
{
	return (begun && !pairingheap_is_empty(&no_memory)) ||
		(!pairingheap_is_empty(&unsettled) && outbox_unsettled_room() > 0);
}

void
outbox_slots_leave(OutboxEndpoint *ep)
{
	if (ep->lists->flow.parent != NULL)
		outbox_flow_leave(&ep->lists->flow);
}

OutboxEndpoint *
outbox_slots_next(TimestampTz now)
{
	OutboxFlow *f;

	while ((f = outbox_flow_first(&all)) != NULL)
	{
		OutboxEndpoint *ep = pairingheap_container(OutboxLists, flow.node, &f->node)
								 ->endpoint;

		if (!outbox_tenant_allows(ep->tenant, now))
		{
			outbox_flow_hold(f->parent, &tenants_held,
							 outbox_tenant_allows_at(ep->tenant, now));
			continue;
		}
		if (!outbox_unsettled_may_send(ep))
		{
			hold_for_settle(f);
			continue;
		}
		if (!outbox_slots_free_for(ep))
			break;
		outbox_flow_take(f, now);
		return ep;
	}
	return NULL;
}

void
outbox_slots_ask_again(TimestampTz now)
{
	OutboxFlow *f;

	/* What changes it at half of the memory is changed back at three quarters. */
	bool enough = may_be_open > outbox_worker_max_in_flight &&
		(firsts ? outbox_memory_fits(outbox_memory_limit() / 4) :
				  outbox_memory_fits_ahead(0));

	if (enough != firsts)
		outbox_flow_set_firsts(&all, &firsts, enough);
	for (int n = ASKED_AGAIN; n > 0 && (f = outbox_flow_first_held(&no_memory)) != NULL;
		 n--)
	{
		turn = Max(turn, f->order);
		outbox_flow_release(f);
	}
	for (int n = outbox_unsettled_room();
		 n > 0 && (f = outbox_flow_first_held(&unsettled)) != NULL; n--)
		outbox_flow_release(f);
	while (outbox_slots_next_time() <= now)
		outbox_flow_release(outbox_flow_first_held(&tenants_held));
}

TimestampTz
outbox_slots_next_time(void)
{
	const OutboxFlow *f = outbox_flow_first_held(&tenants_held);

	return f ? f->order : DT_NOEND;
}

void
outbox_slots_limits_changed(OutboxTenant *t)
{
	outbox_flow_release(&t->flow);
	outbox_loop.traffic.refill_all = true;
}

void
outbox_slots_begin(OutboxEndpoint *ep, size_t bytes, TimestampTz now)
{
	OutboxFlow *f = flow_of(ep);

	outbox_flow_begin(f, WORK_OF_REQUEST + bytes / BYTES_OF_WORK, now);
	if (ep->tenant && f->in_flight == 1 && f->parent->nbelow > 1)
		beside++;
	outbox_pace_take_token(&ep->pace);
	if (ep->tenant && ep->tenant->pace)
		outbox_pace_take_token(ep->tenant->pace);
}

/* It may give back the thing that it lacked, or that its tenant lacked. */
TimestampTz
outbox_slots_end(OutboxEndpoint *ep, int64 least, TimestampTz begun, TimestampTz now)
{
	OutboxFlow *f = flow_of(ep);
	TimestampTz until;

	if (ep->tenant && f->in_flight == 1 && f->parent->nbelow > 1)
		beside--;
	until = outbox_flow_end(f, Max(least - (now - begun), 0), now);
	outbox_flow_release(f);
	if (ep->tenant)
		outbox_flow_release(f->parent);
	return until;
}

bool
outbox_slots_work(int32 endpoint_id, int64 usec, TimestampTz now)
{
	OutboxEndpoint *ep = outbox_loop_find(endpoint_id);
	OutboxFlow	   *f;

	if (ep == NULL)
		return false;
	f = payer_of(ep);
	outbox_flow_work(f, usec, now);
	if (outbox_endpoint_rests(ep) || f->paid_at <= now)
		return false;
	outbox_endpoint_note_lack(ep, LACKS_TIME, f->paid_at);
	return true;
}

bool
outbox_slots_owes(int32 endpoint_id, TimestampTz now)
{
	OutboxEndpoint *ep = outbox_loop_find(endpoint_id);

	return ep && ep->lists->flow.paid_at > now;
}

void
outbox_slots_judged(OutboxEndpoint *ep, int64 usec, int64 booked, TimestampTz now)
{
	outbox_flow_judged(payer_of(ep), usec, booked, now);
}

bool
outbox_slots_book(OutboxEndpoint *ep, int64 usec)
{
	return outbox_flow_book(flow_of(ep), usec, GetCurrentTimestamp());
}

TimestampTz
outbox_slots_judge_at(OutboxEndpoint *ep)
{
	OutboxFlow *f = payer_of(ep);
	TimestampTz now;
	TimestampTz until;

	if (!outbox_flow_has_to_wait(f))
		return 0;
	now = GetCurrentTimestamp();
	until = outbox_flow_judge_at(f, now);
	return until > now ? until : 0;
}
