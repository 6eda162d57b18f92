/*
 * test_flow.c
 *	  Slots are shared by time: slow endpoints, however many, leave a fast one its part (TAP).
 *
 * links: src/endpoint/flow.c
 */
#include "base/outbox.h"

#include "endpoint/flow.h"
#include "tap.h"

/* ---------------------------------------------- the server's heap, as a sorted list */

void
pairingheap_add(pairingheap *heap, pairingheap_node *node)
{
	pairingheap_node **at = &heap->ph_root;

	while (*at != NULL && heap->ph_compare(*at, node, heap->ph_arg) >= 0)
		at = &(*at)->next_sibling;
	node->next_sibling = *at;
	*at = node;
}

void
pairingheap_remove(pairingheap *heap, pairingheap_node *node)
{
	pairingheap_node **at = &heap->ph_root;

	while (*at != node)
		at = &(*at)->next_sibling;
	*at = node->next_sibling;
}

pairingheap_node *
pairingheap_first(pairingheap *heap)
{
	return heap->ph_root;
}

/* ------------------------------------------------------------------- a worker */

#define MS INT64CONST(1000)
#define FLOWS_MAX 4100
#define REQUESTS_MAX 8192
#define MEASURED 500 /* seconds */

typedef struct Endpoint
{
	OutboxFlow	flow;
	TimestampTz takes; /* an answer */
	int			most;  /* requests in flight */
	TimestampTz since; /* it waits without any request (0: it does not) */
	TimestampTz longest;
	int64		answers;
} Endpoint;

static OutboxFlow  root;
static OutboxFlow  tenants[2];
static Endpoint	   endpoints[FLOWS_MAX];
static int		   n;
static Endpoint	  *answering[REQUESTS_MAX]; /* by 'ends' */
static TimestampTz ends[REQUESTS_MAX];
static int		   nrequests;
static TimestampTz now;
static int		   slots; /* what may be open */
static bool		   firsts;

static void
begin_anew(bool with_firsts, int may_be_open)
{
	memset(&root, 0, sizeof(root));
	memset(tenants, 0, sizeof(tenants));
	memset(endpoints, 0, sizeof(endpoints));
	n = nrequests = 0;
	now = INT64CONST(800000000) * USECS_PER_SEC;
	slots = may_be_open;
	firsts = with_firsts;
	outbox_flow_init(&root, &firsts);
	outbox_flow_join(&tenants[0], &root);
	outbox_flow_join(&tenants[1], &root);
}

static Endpoint *
add(OutboxFlow *parent, TimestampTz takes, int most)
{
	Endpoint *e = &endpoints[n++];

	outbox_flow_join(&e->flow, parent);
	e->takes = takes;
	e->most = most;
	e->since = now;
	return e;
}

static void
send(Endpoint *e)
{
	int i = nrequests++;

	outbox_flow_take(&e->flow, now);
	outbox_flow_begin(&e->flow, 4000, now);
	if (e->since != 0)
		e->longest = Max(e->longest, now - e->since);
	e->since = 0;
	for (; i > 0 && ends[i - 1] < now + e->takes; i--)
	{
		ends[i] = ends[i - 1];
		answering[i] = answering[i - 1];
	}
	ends[i] = now + e->takes;
	answering[i] = e;
}

static void
wants(Endpoint *e)
{
	if (e->flow.in_flight < e->most)
		outbox_flow_wait(&e->flow, now);
	else
		outbox_flow_leave(&e->flow);
}

static void
fill(void)
{
	OutboxFlow *f;

	while (nrequests < slots && (f = outbox_flow_first(&root)) != NULL)
	{
		Endpoint *e = (Endpoint *) f;

		send(e);
		wants(e);
	}
}

/* All endpoints have something to send all the time, for so long. */
static void
run(TimestampTz duration)
{
	TimestampTz until = now + duration;

	for (int i = 0; i < n; i++)
		wants(&endpoints[i]);
	fill();
	while (nrequests > 0 && ends[nrequests - 1] <= until)
	{
		Endpoint *e = answering[--nrequests];

		now = ends[nrequests];
		outbox_flow_end(&e->flow, 0, now);
		e->answers++;
		if (e->flow.in_flight == 0)
			e->since = now;
		wants(e);
		fill();
	}
	now = until;
}

static void
shares(const char *what, bool with_firsts, int nslow, bool tenant, double fair)
{
	Endpoint *fast;
	double	  rate;
	char	  words[200];

	begin_anew(with_firsts, 768);
	for (int i = 0; i < nslow; i++)
		add(tenant ? &tenants[0] : &root, 14000 * MS, 32);
	run(20000 * MS);
	fast = add(tenant ? &tenants[1] : &root, 100 * MS, 32);
	run(100 * 1000 * MS); /* to get to a steady state */
	fast->answers = fast->longest = 0;
	run(MEASURED * 1000 * MS);
	rate = fast->answers / (double) MEASURED;
	snprintf(words, sizeof(words), "%s: %.2f/s, of %.2f; waits %.1f s at most", what,
			 rate, fair * 10, fast->longest / 1e6);
	printf("# %s\n", words);
	ok(rate >= 0.9 * fair * 10, words, "", "");
}

/* A request begins and ends.  Returns until when the endpoint has to wait. */
static TimestampTz
request(Endpoint *e, int64 usec)
{
	outbox_flow_begin(&e->flow, 4000, now);
	outbox_flow_work(&e->flow, usec, now);
	return outbox_flow_end(&e->flow, 0, now);
}

/*
 * So many endpoints of a tenant, each of whose requests takes so many µs of work, send one
 * after the other, and wait as they are told.  One beside them has cheap requests.
 */
static void
works(const char *what, int ncostly, int64 usec, int64 min, int64 max)
{
	TimestampTz begun;
	TimestampTz until[FLOWS_MAX] = {0};
	bool		cheap_waits = false;
	int64		worked = 0;
	Endpoint   *cheap;
	char		words[200];

	begin_anew(false, 1);
	for (int i = 0; i < ncostly; i++)
		add(&tenants[0], 0, 1);
	cheap = add(&tenants[0], 0, 1);
	begun = now;
	while (now < begun + 100 * USECS_PER_SEC)
	{
		now += MS;
		cheap_waits = cheap_waits || request(cheap, 100) > now;
		for (int i = 0; i < ncostly; i++)
			if (until[i] <= now)
			{
				worked += usec;
				now += usec;
				until[i] = request(&endpoints[i], usec);
			}
	}
	snprintf(words, sizeof(words), "%s: %.1f %% of the time", what,
			 worked * 100.0 / (now - begun));
	ok(worked * 100 >= min * (now - begun) && worked * 100 <= max * (now - begun), words,
	   "", "");
	ok(!cheap_waits, "one of the tenant with cheap requests never waits", "", "");
}

/* An endpoint owes from the moment in which its work is too much, until it has waited. */
static void
owes(void)
{
	OutboxFlow *costly;
	OutboxFlow *other;
	TimestampTz until;

	begin_anew(false, 1);
	costly = &add(&tenants[0], 0, 1)->flow;
	other = &add(&tenants[0], 0, 1)->flow;
	outbox_flow_begin(costly, 4 * MS, now);
	outbox_flow_begin(other, 4 * MS, now);
	outbox_flow_work(other, 4 * MS, now);
	outbox_flow_work(costly, 8 * MS, now);
	ok(costly->paid_at <= now, "little more than it may", "", "");
	outbox_flow_work(costly, 2 * MS, now);
	until = costly->paid_at;
	ok(until > now, "it owes before its request ends", "", "");
	ok(outbox_flow_end(costly, 0, now) == until, "and until it has waited", "", "");
	ok(other->paid_at <= now, "another one of its tenant does not", "", "");
	outbox_flow_begin(other, 4 * MS, now);
	outbox_flow_work(other, 10 * MS, now);
	ok(other->paid_at > until, "what the tenant owes, it pays as well when it owes", "",
	   "");
	outbox_flow_end(other, 0, now);
	outbox_flow_end(other, 0, now);
}

/*
 * Filters of so many endpoints, of a tenant or of none, take so many µs each time.  The
 * part of the time that they have, in thousandths, is within these bounds.
 */
static void
judges(const char *what, OutboxFlow *parent, int njudged, int64 usec, int min, int max)
{
	TimestampTz begun;
	int64		worked = 0;
	char		words[200];

	begin_anew(false, 1);
	for (int i = 0; i < njudged; i++)
		add(parent, 0, 1);
	begun = now;
	while (now < begun + 1000 * USECS_PER_SEC)
	{
		now += MS;
		for (int i = 0; i < njudged; i++)
		{
			OutboxFlow *f = &endpoints[i].flow;

			if (outbox_flow_has_to_wait(f) && outbox_flow_judge_at(f, now) > now)
				continue;
			worked += usec;
			now += usec;
			outbox_flow_judged(f, outbox_flow_debt(usec), 0, now);
		}
	}
	worked = worked * 1000 / (now - begun);
	snprintf(words, sizeof(words), "%s: %.1f %% of the time", what, worked / 10.0);
	ok(worked >= min && worked <= max, words, "", "");
}

/*
 * A batch of commands is of 200 endpoints of a tenant, which owe its time together.  An
 * endpoint without a tenant whose filter takes long then waits for that time once.
 */
static void
batch_of_many(void)
{
	Endpoint   *other;
	TimestampTz at;

	begin_anew(false, 1);
	other = add(&root, 0, 1);
	for (int i = 0; i < 200; i++)
		outbox_flow_judged(&add(&tenants[0], 0, 1)->flow, 250, 0, now);
	outbox_flow_judged(&other->flow, 6 * MS, 0, now);
	at = outbox_flow_judge_at(&other->flow, now);
	ok(at > now && at < now + 500 * MS, "a batch of many endpoints is one debt", "", "");
}

/*
 * Filters of so many endpoints, of a tenant or of none, are to be evaluated at the same
 * moment, and each takes 5 ms.  One is evaluated at once, and the others have their turns.
 * One of another tenant comes as the last, and is not behind all endpoints of a tenant.
 */
static void
first_evaluations(const char *what, OutboxFlow *parent, int nlong, int64 most)
{
	TimestampTz begun;
	TimestampTz last = 0;
	TimestampTz apart = PG_INT64_MAX;
	bool		judged[FLOWS_MAX] = {false};
	int			done = 0;
	char		words[200];

	begin_anew(false, 1);
	for (int i = 0; i < nlong; i++)
		add(parent, 0, 1);
	add(&tenants[1], 0, 1);
	begun = now;
	while (!judged[nlong] && now < begun + 1000 * USECS_PER_SEC)
	{
		now += MS;
		for (int i = 0; i <= nlong; i++)
		{
			OutboxFlow *f = &endpoints[i].flow;

			if (judged[i] ||
				(outbox_flow_has_to_wait(f) && outbox_flow_judge_at(f, now) > now) ||
				!outbox_flow_book(f, 30 * MS, now))
				continue;
			if (done++ > 0)
				apart = Min(apart, now - last);
			last = now;
			now += 5 * MS;
			outbox_flow_judged(f, 30 * MS, 30 * MS, now);
			judged[i] = true;
		}
	}
	snprintf(words, sizeof(words), "%s: %d of them, %d ms apart, the last after %d ms",
			 what, done, (int) (apart / MS), (int) ((now - begun) / MS));
	ok(judged[nlong] && apart > 200 * MS && now - begun < most, words, "", "");
}

/* An evaluation that takes so long was held up by the machine. */
static void
held_up(void)
{
	OutboxFlow *f;

	begin_anew(false, 1);
	f = &add(&tenants[0], 0, 1)->flow;
	outbox_flow_judged(f, outbox_flow_debt(10 * USECS_PER_SEC), 0, now);
	ok(outbox_flow_judge_at(f, now) < now + USECS_PER_SEC,
	   "an endpoint waits less than 1 s for an evaluation that was held up for 10 s", "",
	   "");
}

/* A debt is paid sooner while the process is idle, and not while it takes naps. */
static void
idle(void)
{
	OutboxFlow *f;

	begin_anew(false, 1);
	f = &add(&root, 0, 1)->flow;
	outbox_flow_judged(f, 30 * MS, 0, now);
	for (int i = 0; i < 400; i++)
	{
		now += MS / 2;
		outbox_flow_slept(MS / 2);
	}
	ok(outbox_flow_judge_at(f, now) > now, "naps of 0.5 ms for 200 ms do not pay", "",
	   "");
	for (int i = 0; i < 10; i++)
	{
		now += 10 * MS;
		outbox_flow_slept(10 * MS);
	}
	ok(outbox_flow_judge_at(f, now) <= now, "10 ms ten times do", "", "");
}

/*
 * So many endpoints always want to try again, and fail at once.  One that answers after
 * 2 ms has an event each 100 ms.  To begin a request takes 3 ms.
 */
static void
among_failures(int nfailing, int64 failure_counts)
{
	Endpoint   *well;
	TimestampTz since = 0;
	TimestampTz longest = 0;
	TimestampTz next;
	char		words[200];

	begin_anew(true, 1);
	for (int i = 0; i < nfailing; i++)
		outbox_flow_wait(&add(&root, 0, 1)->flow, now);
	well = add(&root, 0, 1);
	next = now;
	for (int step = 0; step < 20 * nfailing; step++)
	{
		OutboxFlow *f;

		if (since == 0 && next <= now)
		{
			since = now;
			next = now + 100 * MS;
			outbox_flow_wait(&well->flow, now);
		}
		f = outbox_flow_first(&root);
		outbox_flow_take(f, now);
		outbox_flow_begin(f, 4000, now);
		now += 3 * MS;
		if (f == &well->flow)
		{
			if (step > 2 * nfailing)
				longest = Max(longest, now - since);
			since = 0;
			outbox_flow_end(f, 3 * MS, now);
		}
		else
		{
			outbox_flow_end(f, failure_counts - 3 * MS, now);
			outbox_flow_wait(f, now);
		}
	}
	snprintf(words, sizeof(words), "among %d that fail at once, one waits %.3f s at most",
			 nfailing, longest / 1e6);
	ok(longest > 0 && longest < 100 * MS, words, "", "");
}

/* A tenant has ten requests, and 20 endpoints without one.  Another has one, and wants more. */
static void
order_changes(void)
{
	Endpoint *other;

	begin_anew(true, 768);
	for (int i = 0; i < 30; i++)
	{
		Endpoint *e = add(&tenants[0], 14000 * MS, 1);

		if (i < 10)
			send(e);
		else
			wants(e);
	}
	other = add(&tenants[1], 100 * MS, 32);
	send(other);
	wants(other);
	ok(outbox_flow_first(&root) != &other->flow, "first requests come first", "", "");
	outbox_flow_set_firsts(&root, &firsts, false);
	ok(outbox_flow_first(&root) == &other->flow, "and then the tenant with fewer", "",
	   "");
	outbox_flow_set_firsts(&root, &firsts, true);
	ok(outbox_flow_first(&root) != &other->flow, "and again", "", "");
}

int
main(void)
{
	order_changes();
	among_failures(4000, USECS_PER_SEC);

	owes();
	batch_of_many();
	held_up();
	idle();
	first_evaluations("a hundred without a tenant", &root, 100, 26 * USECS_PER_SEC);
	first_evaluations("a hundred of a tenant", &tenants[0], 100, USECS_PER_SEC);
	judges("a filter of 0.1 ms", &root, 1, 100, 50, 65);
	judges("ten of a tenant", &tenants[0], 10, 100, 50, 65);
	judges("a hundred without one, of 5 ms each", &root, 100, 5 * MS, 5, 25);
	judges("ten of a tenant, of 5 ms each", &tenants[0], 10, 5 * MS, 5, 15);
	judges("a filter of 2 µs never waits", &root, 20, 2, 38, 40);
	works("one whose requests take 20 ms", 1, 20 * MS, 4, 9);
	works("100 of a tenant", 100, 20 * MS, 4, 12);
	works("one whose requests take 2 ms is not held back", 1, 2 * MS, 60, 100);

	shares("ten slow ones", true, 10, false, 32);
	shares("40 slow ones", true, 40, false, 768.0 / 41);
	shares("400 slow ones", true, 400, false, 768.0 / 401);
	shares("4,000 slow ones", true, 4000, false, 768.0 / 4001);
	shares("4,000 slow ones of another tenant", false, 4000, true, 32);
	shares("40 slow ones of another tenant", false, 40, true, 32);
	return done_testing();
}
