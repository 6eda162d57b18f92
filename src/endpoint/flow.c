/*
 * flow.c
 *	  Owns which of the endpoints that wait gets the next slot.
 *
 * It is the flow with the fewest requests in flight, and among equals the flow that has
 * used the least slot-time: the sum of the durations of its requests, also of requests in
 * flight.  Flows with equally many in flight use slot-time equally fast, so their order
 * does not change while nothing begins or ends.  See worker/README.md.
 */
#include "base/outbox.h"

#include "endpoint/filter.h"
#include "endpoint/flow.h"

#define flow_of(n) pairingheap_container(OutboxFlow, node, n)
#define const_flow_of(n) pairingheap_const_container(OutboxFlow, node, n)

/*
 * Work that is a debt may take 1/SHARE of the time of the process: the debt of one
 * endpoint, and the debts of all endpoints of one tenant together.
 */
#define SHARE 16
#define DEBT_FREE (5 * 1000)
#define PAYS_MAX (160 * USECS_PER_SEC) /* time that debts take to be paid, at most */
#define UNUSED_MAX USECS_PER_SEC

/*
 * Filters and commands have an account of their own.  1/SHARE of the time pays the account
 * of a tenant, half of that the account of an endpoint of the tenant, and twice that the
 * account of all that have to wait.  Of the time in which the process is idle, IDLE_PAYS
 * times as much more pays.  It is not idle while it sleeps for a NAP: it waits for answers
 * or events that come often, and they would wait for the work.
 */
#define IDLE_PAYS 4
#define NAP 1000

/*
 * An evaluation of so many µs holds up others twice as much as shorter ones together.
 * A longer time than any filter may take (filter.h) was most likely held up by the machine,
 * and a machine that is slow is not as slow as HELD_UP.
 */
#define LONG_WORK 1000
#define LONGEST_WORK OUTBOX_FILTER_MAX_TIME
#define HELD_UP 20000

static int64 orders; /* of flows that began to wait */
static int64 slept;	 /* µs of idle time, IDLE_PAYS times */

/* True if the first is less, modulo 2^64. */
static bool
is_less(uint64 a, uint64 b)
{
	return (int64) (a - b) < 0;
}

static uint64
used_until(const OutboxFlow *f, TimestampTz now)
{
	return f->used + (uint64) f->in_flight * (uint64) now;
}

/* True if the flow, or the next flow below it, has no request in flight. */
static bool
is_first(const OutboxFlow *f)
{
	return (pairingheap_is_empty(&f->waiting) ? f : flow_of(f->waiting.ph_root))
			   ->in_flight == 0;
}

/* A heap has the greatest first, so the next flow is greater. */
static int
compare(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const OutboxFlow *x = const_flow_of(a);
	const OutboxFlow *y = const_flow_of(b);
	const bool		 *firsts = arg;

	if (firsts && *firsts && is_first(x) != is_first(y))
		return is_first(x) ? 1 : -1;
	if (x->in_flight != y->in_flight)
		return x->in_flight < y->in_flight ? 1 : -1;
	if (x->used != y->used)
		return is_less(x->used, y->used) ? 1 : -1;
	return x->order < y->order ? 1 : x->order > y->order ? -1 : 0;
}

int
outbox_flow_compare_held(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	int64 x = const_flow_of(a)->order;
	int64 y = const_flow_of(b)->order;

	return x < y ? 1 : x > y ? -1 : 0;
}

void
outbox_flow_init(OutboxFlow *root, const bool *firsts)
{
	root->waiting.ph_compare = compare;
	root->waiting.ph_arg = unconstify(bool *, firsts);
}

void
outbox_flow_set_firsts(OutboxFlow *root, bool *firsts, bool value)
{
	pairingheap old = root->waiting;

	root->waiting.ph_root = NULL;
	*firsts = value;
	while (!pairingheap_is_empty(&old))
	{
		pairingheap_node *node = pairingheap_first(&old);

		pairingheap_remove(&old, node);
		pairingheap_add(&root->waiting, node);
	}
}

void
outbox_flow_join(OutboxFlow *f, OutboxFlow *parent)
{
	f->parent = parent;
	f->waiting.ph_compare = compare;
}

static bool
is_held(const OutboxFlow *f)
{
	return f->in != NULL && f->in != &f->parent->waiting;
}

static void
move(OutboxFlow *f, pairingheap *to)
{
	pairingheap *own = &f->parent->waiting;
	pairingheap *from = f->in;

	if (from != NULL)
		pairingheap_remove(from, &f->node);
	if (to == own && from != own)
		f->order = orders++;
	if (to != NULL)
		pairingheap_add(to, &f->node);
	f->in = to;
	if (from == own && to != own && pairingheap_is_empty(own))
		f->parent->period++;
}

/* Puts the flow and the flows above it where they belong, after a change. */
static void
place(OutboxFlow *f)
{
	for (; f->parent != NULL; f = f->parent)
	{
		bool wants = f->waits || !pairingheap_is_empty(&f->waiting);

		if (wants || f->in != NULL)
			move(f, !wants ? NULL : is_held(f) ? f->in : &f->parent->waiting);
	}
}

/*
 * Slot-time counts while some flows wait.  A flow that begins to wait, or that was idle,
 * has used at least as much as the flow that was served last: slot-time that it did not
 * use before is lost.  Slot-time that it used while the others did not want it is no
 * debt.
 */
static void
catch_up(OutboxFlow *f, TimestampTz now)
{
	for (; f->parent != NULL; f = f->parent)
	{
		uint64 clock = f->parent->clock;

		if (f->in_period != f->parent->period)
			f->used = clock - (uint64) f->in_flight * (uint64) now;
		else if (f->in_flight == 0 && !f->active && is_less(f->used, clock))
			f->used = clock;
		else if (f->in_flight == 0 && is_less(clock, f->served))
		{
			f->used -= f->served - clock;
			f->served = clock;
		}
		f->in_period = f->parent->period;
		f->active = true;
	}
}

void
outbox_flow_wait(OutboxFlow *f, TimestampTz now)
{
	if (f->waits)
		return;
	catch_up(f, now);
	f->waits = true;
	place(f);
}

static void
stop(OutboxFlow *f)
{
	f->waits = false;
	if (f->in != NULL)
	{
		move(f, NULL);
		place(f->parent);
	}
}

void
outbox_flow_leave(OutboxFlow *f)
{
	stop(f);
	for (; f->parent != NULL && f->in_flight == 0 && f->in == NULL; f = f->parent)
		f->active = false;
}

OutboxFlow *
outbox_flow_first(const OutboxFlow *root)
{
	OutboxFlow *f = NULL;

	for (pairingheap_node *n = root->waiting.ph_root; n != NULL; n = f->waiting.ph_root)
		f = flow_of(n);
	return f;
}

void
outbox_flow_take(OutboxFlow *f, TimestampTz now)
{
	if (!f->waits)
		return;
	for (OutboxFlow *g = f; g->parent != NULL; g = g->parent)
		g->parent->clock = used_until(g, now);
	stop(f);
}

void
outbox_flow_hold(OutboxFlow *f, pairingheap *held, int64 order)
{
	move(f, NULL);
	f->order = order;
	pairingheap_add(held, &f->node);
	f->in = held;
	place(f->parent);
}

void
outbox_flow_release(OutboxFlow *f)
{
	if (!is_held(f))
		return;
	move(f, &f->parent->waiting);
	place(f->parent);
}

OutboxFlow *
outbox_flow_first_held(pairingheap *held)
{
	return pairingheap_is_empty(held) ? NULL : flow_of(pairingheap_first(held));
}

/* ------------------------------------------------------------------ debts */

/* Adds to a debt that is paid by 'usec' of time. */
static void
owe(TimestampTz *paid_at, int64 usec, TimestampTz now)
{
	*paid_at = Min(Max(*paid_at, now) + usec, now + PAYS_MAX);
}

/* --------------------------------------------------- filters and commands */

void
outbox_flow_slept(int64 usec)
{
	slept += Max(usec - NAP, 0) * IDLE_PAYS;
}

/* Returns how many µs pay a µs of a debt. */
static int64
price(const OutboxFlow *f)
{
	if (f->parent == NULL)
		return SHARE / 2;
	return f->parent->parent == NULL ? SHARE : SHARE * 2;
}

/* Adds to the debt of all, of which each part is bounded.  Returns when it was paid before. */
static TimestampTz
all_owe(OutboxFlow *root, int64 usec, TimestampTz clock)
{
	TimestampTz before = Max(root->judged_paid_at, clock);

	root->judged_paid_at = before + Min(usec * price(root), PAYS_MAX);
	return before;
}

int64
outbox_flow_debt(int64 usec)
{
	usec = Min(usec, HELD_UP);
	return usec + usec * Min(usec, LONGEST_WORK) / LONG_WORK;
}

bool
outbox_flow_book(OutboxFlow *f, int64 usec, TimestampTz now)
{
	TimestampTz clock = now + slept;
	OutboxFlow *top = f;

	while (top->parent->parent != NULL)
		top = top->parent;
	if (top->booked_at == 0)
		top->booked_at = all_owe(top->parent, usec, clock);
	if (top->booked_at > clock)
	{
		f->judge_at = Max(f->judge_at, top->booked_at);
		return false;
	}
	top->booked_at = 0;
	return true;
}

/*
 * A flow with a debt of more than DEBT_FREE waits until it is paid, and until the debts are
 * paid that others had to wait for before it.
 */
void
outbox_flow_judged(OutboxFlow *f, int64 usec, int64 booked, TimestampTz now)
{
	TimestampTz clock = now + slept;
	int64		late = 0;
	OutboxFlow *root = f;

	for (; root->parent != NULL; root = root->parent)
	{
		int64 debt;

		owe(&root->judged_paid_at, usec * price(root), clock);
		debt = (root->judged_paid_at - clock) / price(root);
		if (debt > DEBT_FREE)
		{
			/* If it waits already, the others know of the rest. */
			late = Max(late, root->judge_at > clock ? usec : debt);
			root->judge_at = root->judged_paid_at;
		}
	}
	if (late <= booked)
		return;
	(void) all_owe(root, late - booked, clock);
	for (; f != root; f = f->parent)
		if (f->judge_at > clock)
			f->judge_at = Max(f->judge_at, Min(root->judged_paid_at, clock + PAYS_MAX));
}

bool
outbox_flow_has_to_wait(const OutboxFlow *f)
{
	return f->judge_at != 0 || (f->parent && f->parent->judge_at != 0);
}

TimestampTz
outbox_flow_judge_at(OutboxFlow *f, TimestampTz now)
{
	int64 left = 0;

	for (; f->parent != NULL; f = f->parent)
	{
		if (f->judge_at <= now + slept)
			f->judge_at = 0;
		else
			left = Max(left, f->judge_at - (now + slept));
	}
	return now + (left + IDLE_PAYS) / (1 + IDLE_PAYS);
}

/* --------------------------------------------------------------- requests */

/*
 * More work than the requests may take is a debt at once: of the endpoint, and of its
 * tenant.  The endpoint pays until both are paid.
 */
void
outbox_flow_work(OutboxFlow *f, int64 usec, TimestampTz now)
{
	f->work += usec;
	if (f->work <= DEBT_FREE)
		return;
	for (OutboxFlow *g = f; g->parent != NULL; g = g->parent)
	{
		owe(&g->paid_at, f->work * SHARE, now);
		f->paid_at = Max(f->paid_at, g->paid_at);
	}
	f->work = 0;
}

void
outbox_flow_begin(OutboxFlow *f, int64 may_work, TimestampTz now)
{
	f->work = Max(f->work - may_work, -UNUSED_MAX);
	catch_up(f, now);
	for (OutboxFlow *g = f; g != NULL; g = g->parent)
	{
		g->served = used_until(g, now);
		if (g->in_flight++ == 0 && g->parent != NULL)
			g->parent->nbelow++;
		g->used -= (uint64) now;
	}
	place(f);
}

TimestampTz
outbox_flow_end(OutboxFlow *f, int64 more, TimestampTz now)
{
	if (f->in_flight == 1)
		f->work = 0;
	for (OutboxFlow *g = f; g != NULL; g = g->parent)
	{
		if (--g->in_flight == 0 && g->parent != NULL)
			g->parent->nbelow--;
		g->used += (uint64) now + (uint64) more;
	}
	place(f);
	return Max(f->paid_at, now);
}
