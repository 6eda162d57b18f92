/*
 * test_attempt_run.c
 *	  A run of attempts is read as it was written, each attempt is found by its event, and
 *	  other bytes are refused without a read behind their end (TAP).
 *
 * links: src/base/attempt_run.c
 */
#include "base/attempt_run.h"
#include "tap.h"

#include <math.h>

#define LOW INT64CONST(4711)
#define AT INT64CONST(842000000123456)

static OutboxRunAttempt given[OUTBOX_RUN_MOST];
static uint8			bytes[OUTBOX_RUN_MOST * OUTBOX_RUN_ENTRY];

static bool
same(const OutboxRunAttempt *a, const OutboxRunAttempt *b)
{
	return a->seq == b->seq && a->started_at == b->started_at &&
		memcmp(&a->duration, &b->duration, sizeof(float)) == 0 &&
		memcmp(&a->event_id, &b->event_id, sizeof(pg_uuid_t)) == 0;
}

/* Packs 'n' attempts whose events are 'apart' from each other. */
static size_t
pack(int n, int apart, int64 low)
{
	uint8 *p = bytes;

	for (int i = 0; i < n; i++)
	{
		given[i].seq = low + (int64) i * apart;
		given[i].started_at = AT + (i % 2 ? PG_INT32_MAX : PG_INT32_MIN) / (i + 1);
		given[i].duration = (float) i / 7;
		for (int k = 0; k < UUID_LEN; k++)
			given[i].event_id.data[k] = (uint8) random();
		if (!outbox_run_takes(low, AT, given[i].seq, given[i].started_at))
			return 0;
		p = outbox_run_put(p, low, AT, &given[i]);
	}
	return p - bytes;
}

static void
reads(const char *what, int n, int apart, int64 low)
{
	size_t			 size = pack(n, apart, low);
	OutboxRun		 run;
	OutboxRunAttempt got;
	bool			 good = outbox_run_open(&run, low, AT, bytes, size) && run.n == n;
	bool			 found = good;

	for (int i = 0; good && i < n; i++)
	{
		good = outbox_run_get(&run, i, &got) && same(&got, &given[i]);
		found = found && given[outbox_run_find(&run, given[i].seq)].seq == given[i].seq &&
			(apart < 2 || outbox_run_find(&run, given[i].seq + 1) == i + 1);
	}
	ok(good, "is read as it was written", what, "");
	ok(found, "each is found", what, "");
	ok(outbox_run_find(&run, PG_INT64_MIN) == 0 &&
		   outbox_run_find(&run, PG_INT64_MAX) == n,
	   "and none of the others", what, "");
}

/* The bytes have a place of their own, so that a memory checker sees what is read. */
static void
refuses(const char *what, const uint8 *wrong, size_t size, int64 low, TimestampTz at,
		bool from_the_first)
{
	uint8			*copy = malloc(Max(size, 1));
	OutboxRun		 run;
	OutboxRunAttempt got;
	bool			 opened;
	bool			 good = true;

	memcpy(copy, wrong, size);
	opened = outbox_run_open(&run, low, at, copy, size);
	for (int i = 0; opened && i < run.n; i++)
		good = outbox_run_get(&run, i, &got) && good;
	if (opened)
		for (int i = -10; i < 5000; i++)
		{
			int place = outbox_run_find(&run, low + i);

			if (place < 0 || place > run.n)
				opened = from_the_first; /* the test fails */
		}
	ok(from_the_first ? !opened : opened && !good, "is refused", what, "");
	free(copy);
}

int
main(void)
{
	uint8  wrong[sizeof(bytes) + OUTBOX_RUN_ENTRY];
	size_t size;
	uint32 nan;

	srandom(1);
	reads("one", 1, 1, LOW);
	reads("neighbours", OUTBOX_RUN_MOST, 1, LOW);
	reads("far apart", OUTBOX_RUN_MOST, OUTBOX_RUN_SPAN / (OUTBOX_RUN_MOST - 1), LOW);
	reads("two at the ends", 2, OUTBOX_RUN_SPAN, LOW);
	reads("below 0", 9, 100, -400);
	reads("the last numbers", 2, OUTBOX_RUN_SPAN, PG_INT64_MAX - OUTBOX_RUN_SPAN - 1);
	(void) pack(5, 0, LOW);
	{
		OutboxRun run;

		(void) outbox_run_open(&run, LOW, AT, bytes, 5 * OUTBOX_RUN_ENTRY);
		ok(outbox_run_find(&run, LOW) == 0 && outbox_run_find(&run, LOW + 1) == 5,
		   "the first is found", "five of one event", "");
	}
	ok(!outbox_run_takes(LOW, AT, LOW + OUTBOX_RUN_SPAN + 1, AT), "is not taken",
	   "an event that is too far", "");
	ok(!outbox_run_takes(LOW, AT, LOW - 1, AT), "is not taken", "an earlier event", "");
	ok(!outbox_run_takes(LOW, AT, LOW, AT + PG_INT32_MAX + INT64CONST(1)), "is not taken",
	   "a time that is too late", "");
	ok(!outbox_run_takes(LOW, AT, LOW, AT + PG_INT32_MIN - INT64CONST(1)), "is not taken",
	   "a time that is too early", "");

	size = pack(OUTBOX_RUN_MOST, 1, LOW);
	memcpy(wrong, bytes, size);
	memcpy(wrong + size, bytes + size - OUTBOX_RUN_ENTRY, OUTBOX_RUN_ENTRY);
	refuses("nothing", wrong, 0, LOW, AT, true);
	for (size_t n = 1; n < 2 * OUTBOX_RUN_ENTRY; n++)
		if (n != OUTBOX_RUN_ENTRY)
			refuses("a part of an attempt", wrong, n, LOW, AT, true);
	refuses("too many", wrong, size + OUTBOX_RUN_ENTRY, LOW, AT, true);
	refuses("a number above all", wrong, size, PG_INT64_MAX - OUTBOX_RUN_SPAN + 1, AT,
			true);
	refuses("no time", wrong, size, LOW, PG_INT64_MAX, true);
	refuses("a time before the first", wrong, size, LOW, MIN_TIMESTAMP, false);
	refuses("a time behind the last", wrong, size, LOW, END_TIMESTAMP - 1, false);

	wrong[3 * OUTBOX_RUN_ENTRY + 1] = 1;
	refuses("another order", wrong, size, LOW, AT, false);
	memcpy(wrong, bytes, size);
	wrong[1] = 1;
	refuses("a first one that is not the first", wrong, OUTBOX_RUN_ENTRY, LOW, AT, false);
	memcpy(wrong, bytes, size);
	wrong[size - OUTBOX_RUN_ENTRY] = (OUTBOX_RUN_SPAN + 1) >> 8;
	wrong[size - OUTBOX_RUN_ENTRY + 1] = 0;
	refuses("one that is too far", wrong, size, LOW, AT, false);
	memcpy(wrong, bytes, size);
	nan = 0xffffffff;
	memcpy(wrong + 6, &nan, sizeof(nan));
	refuses("a duration that is no number", wrong, size, LOW, AT, false);
	return done_testing();
}
