/*
 * test_pace.c
 *	  Requests go out as fast as backoff, breaker, ramp and rate_limit allow (TAP).
 *
 * links: src/endpoint/pace.c
 */
#include "base/outbox.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "endpoint/pace.h"
#include "tap.h"

#define S USECS_PER_SEC

/* pace.c uses these of the server. */
MemoryContext TopMemoryContext = NULL;

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	(void) context;
	return calloc(1, size);
}

void
pfree(void *pointer)
{
	free(pointer);
}

static const TimestampTz noon = INT64CONST(800000000) * USECS_PER_SEC;

static OutboxPace
fresh(int max_in_flight, double rate_limit)
{
	OutboxPace		 p;
	OutboxPaceLimits limits = {max_in_flight, rate_limit, 1 * S, 3600 * S};

	memset(&p, 0, sizeof(p));
	outbox_pace_set_limits(&p, &limits);
	return p;
}

static void
backoff(void)
{
	ok(outbox_backoff(1, 1 * S, 3600 * S, 0.0) == S / 10,
	   "the first wait: a tenth at least", "", "");
	ok(outbox_backoff(1, 1 * S, 3600 * S, 0.999999) <= 1 * S, "and the base at most", "",
	   "");
	for (int n = 1; n <= 12; n++)
		ok(llabs(outbox_backoff(n, 1 * S, 3600 * S, 0.5) -
				 (int64) (0.55 * (1 << (n - 1)) * S)) <= 1,
		   "the bound doubles", "", "");
	ok(outbox_backoff(13, 1 * S, 3600 * S, 1.0) == 3600 * S, "up to backoff_max", "", "");
	ok(outbox_backoff(2000000000, 1 * S, 3600 * S, 1.0) == 3600 * S,
	   "whatever the attempt", "", "");
	ok(outbox_backoff(5, 10 * S, 3 * S, 1.0) == 3 * S,
	   "a base above the maximum is the maximum", "", "");
}

static void
breaker(void)
{
	OutboxPace	p = fresh(64, 0);
	TimestampTz retry_at;

	/* One event that always fails does not open the breaker. */
	for (int i = 0; i < 3 * OUTBOX_BREAKER_FAILURES; i++)
		ok(!outbox_pace_failure(&p, 7, false, noon),
		   "one event does not open the breaker", "", "");
	ok(outbox_pace_has_slot(&p, 0) && !outbox_pace_has_slot(&p, 4),
	   "failures take their slots along", "", "");
	ok(!outbox_pace_success(&p, noon), "a success closes nothing that is closed", "", "");
	ok(outbox_pace_has_slot(&p, 63) && !outbox_pace_has_slot(&p, 64),
	   "it gives all slots back", "", "");

	for (int i = 1; i < OUTBOX_BREAKER_FAILURES; i++)
		ok(!outbox_pace_failure(&p, i % OUTBOX_BREAKER_EVENTS, false, noon), "not yet",
		   "", "");
	ok(outbox_pace_failure(&p, 0, false, noon),
	   "so many failures of several events open it", "", "");
	ok(p.breaker == OUTBOX_BREAKER_OPEN && p.retry_at > noon, "there is a wait", "", "");
	ok(!outbox_pace_allows(&p, 0, noon), "nothing is sent while it waits", "", "");
	ok(outbox_pace_allows(&p, 0, p.retry_at), "then one probe", "", "");
	ok(!outbox_pace_allows(&p, 1, p.retry_at), "and no second one", "", "");

	retry_at = p.retry_at;
	ok(!outbox_pace_failure(&p, 1, false, noon + 1), "a request from before says nothing",
	   "", "");
	ok(p.retry_at == retry_at, "the wait is as it was", "", "");
	for (int i = 0; i < 5; i++)
		ok(!outbox_pace_failure(&p, 1, true, p.retry_at),
		   "a probe that fails opens nothing that is open", "", "");
	ok(p.openings == 6 && p.retry_at > retry_at, "the wait is longer", "", "");

	ok(outbox_pace_success(&p, p.retry_at), "a probe that is answered closes it", "", "");
	ok(p.slots == 1 && p.retry_at == 0, "with one slot, and no wait", "", "");
}

static void
refusals(void)
{
	OutboxPace	   p = fresh(64, 0);
	OutboxRefused *r;
	TimestampTz	   probe_at;
	char		   topic[] = "x0";

	for (int i = 0; i < 3 * OUTBOX_BREAKER_FAILURES; i++)
		(void) outbox_pace_refusal(&p, "one", i % 2, noon);
	ok(outbox_pace_refused(&p, NULL) == NULL, "two events are no topic", "", "");
	ok(!outbox_pace_takes(&p, "one") && p.refused == NULL, "it is taken again", "", "");

	for (int i = 0; i < OUTBOX_BREAKER_FAILURES; i++)
	{
		ok(outbox_pace_refused(&p, NULL) == NULL, "no topic is refused yet", "", "");
		ok(!outbox_pace_refusal(&p, "7", i, noon),
		   "a refusal is a failure of the endpoint", "", "");
	}
	r = outbox_pace_refused(&p, "7");
	ok(r && outbox_pace_refused(&p, NULL) == r && !outbox_pace_refused(&p, "9"),
	   "one topic is refused", "", "");
	ok(!outbox_pace_holds(&p), "and not held where nothing was ever taken", "", "");
	(void) outbox_pace_success(&p, noon);
	p.failures.n = 19;
	ok(outbox_pace_holds(&p) && outbox_pace_refusal(&p, "7", 1, noon) &&
		   p.failures.n == 0,
	   "another topic was taken: it is the topic's", "", "");
	probe_at = r->retry_at;
	ok(probe_at > noon && r->waits == 1, "what was in flight is no probe", "", "");
	(void) outbox_pace_refusal(&p, "7", 1, probe_at);
	ok(r->retry_at > probe_at && r->waits == 2, "a probe is", "", "");
	outbox_pace_resume(&p);
	ok(r->retry_at != 0 && r->retry_at < noon, "an operator need not wait", "", "");
	for (int i = 2; i < OUTBOX_REFUSALS_PAID; i++)
		ok(outbox_pace_refusal(&p, "7", i, noon), "more of them are the topic's", "", "");
	ok(!outbox_pace_refusal(&p, "7", 1, noon) && !outbox_pace_holds(&p),
	   "but not for ever", "", "");
	(void) outbox_pace_success(&p, noon);
	ok(!outbox_pace_refusal(&p, "9", 1, noon), "a first one of another topic counts", "",
	   "");
	ok(outbox_pace_takes(&p, "7") && !outbox_pace_refused(&p, "7"), "it is taken again",
	   "", "");
	for (topic[1] = 'a'; topic[1] <= 'z'; topic[1]++)
		for (int i = 0; i < OUTBOX_BREAKER_FAILURES; i++)
			(void) outbox_pace_refusal(&p, topic, i, noon);
	ok(!outbox_pace_refusal(&p, "xz", 1, noon) && !outbox_pace_refused(&p, "xz"),
	   "of too many topics, each counts for the endpoint", "", "");
	p.breaker = OUTBOX_BREAKER_OPEN;
	ok(!outbox_pace_refusal(&p, "xa", 1, noon) && !outbox_pace_holds(&p),
	   "and so does a probe", "", "");
	for (int i = 0; i < OUTBOX_BREAKER_FAILURES; i++)
		(void) outbox_pace_refusal(&p, "xz", i, noon + 2 * 3600 * S);
	ok(!outbox_pace_refused(&p, "xz"), "a topic keeps its place while it may be tried",
	   "", "");
	for (int i = 0; i < OUTBOX_BREAKER_FAILURES; i++)
		(void) outbox_pace_refusal(&p, "xz", i, noon + 2 * 3600 * S + 2);
	ok(outbox_pace_refused(&p, "xz") && !outbox_pace_refused(&p, "xa"),
	   "and then gives it to another one", "", "");
	outbox_pace_free(&p);
}

static void
ramp(void)
{
	OutboxPace p = fresh(48, 0);
	int		   want[] = {24, 48, 48};

	outbox_pace_slow_down(&p, 30, noon);
	ok(p.slots == 24, "a slow-down halves the slots", "", "");
	ok(!outbox_pace_allows(&p, 0, noon + 30 * S - 1) &&
		   outbox_pace_allows(&p, 0, noon + 30 * S),
	   "and waits as long as the answer says", "", "");
	outbox_pace_ramp_up(&p, noon + S - 1);
	ok(p.slots == 24, "no more slots within a second", "", "");
	for (size_t i = 1; i < lengthof(want); i++)
	{
		outbox_pace_ramp_up(&p, noon + i * S);
		outbox_pace_ramp_up(&p, noon + i * S);
		ok(p.slots == want[i], "once a second they double, up to max_in_flight", "", "");
	}
	for (int i = 0; i < 20; i++)
		outbox_pace_slow_down(&p, -1, noon);
	ok(p.slots == 1, "one slot is left", "", "");
	outbox_pace_slow_down(&p, PG_INT64_MAX, noon);
	ok(p.retry_at == noon + 3600 * S, "no wait is longer than backoff_max", "", "");
	outbox_pace_resume(&p);
	ok(outbox_pace_allows(&p, 0, noon), "an operator ends it", "", "");
}

static void
limits_change(void)
{
	OutboxPace		 p = fresh(8, 0);
	OutboxPaceLimits more = {100, 0, S, S};

	outbox_pace_set_limits(&p, &more);
	ok(p.slots == 100, "other limits are in force at once", "", "");
	outbox_pace_slow_down(&p, -1, noon);
	outbox_pace_set_limits(&p, &more);
	ok(p.slots == 50, "but end no slow-down", "", "");
}

/* Within ten seconds as many requests are sent as the limit allows. */
static void
rate(double limit)
{
	OutboxPace	p = fresh(1000, limit);
	TimestampTz now = noon;
	int			n = 0;
	char		text[32];

	snprintf(text, sizeof(text), "%g", limit);

	/*
	 * After a long pause, at most the requests of a tenth of a second are sent at
	 * once.
	 */
	while (outbox_pace_allows(&p, 0, now))
	{
		outbox_pace_take_token(&p);
		n++;
	}
	ok(n <= Max(1, limit / 10), "what was not used is not saved up", text, "");
	for (n = 0; now < noon + 10 * S;)
	{
		TimestampTz at = outbox_pace_token_at(&p, now);

		ok(at >= now, "a token comes now or later", text, "");
		now = at;
		if (outbox_pace_allows(&p, 0, now))
		{
			outbox_pace_take_token(&p);
			n++;
		}
	}
	ok(n >= 10 * limit - 1 && n <= 10 * limit + 2, "requests in ten seconds", text, "");
	outbox_pace_return_token(&p);
	ok(outbox_pace_token_at(&p, now) == now, "one that was not sent counts for nothing",
	   text, "");
	ok(outbox_pace_token_at(&p, now - 3600 * S) >= now - 3600 * S,
	   "a clock that goes back gives nothing", text, "");
}

int
main(void)
{
	OutboxPace p = fresh(1, 0);

	backoff();
	breaker();
	refusals();
	ramp();
	limits_change();
	rate(0.5);
	rate(3);
	rate(40);
	ok(outbox_pace_token_at(&p, noon) == noon, "without a limit there is no wait", "",
	   "");
	return done_testing();
}
