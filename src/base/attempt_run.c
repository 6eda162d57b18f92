/*
 * attempt_run.c
 *	  Owns the packed form of a run of attempts.
 *
 * Each attempt has the same size: the event's number, as a distance from the first one's
 * (2 bytes), the time as a distance from the run's in µs (4), the duration (4), and the
 * id of the event (16).  Numbers are written with the highest byte first, so that a dump
 * can be restored on any machine.
 */
#include "base/attempt_run.h"

#include <math.h>

#include "port/pg_bswap.h"

#define AT_TIME 2
#define AT_DURATION 6
#define AT_ID 10

StaticAssertDecl(AT_ID + UUID_LEN == OUTBOX_RUN_ENTRY, "parts and size of an attempt");

static void
put_uint32(uint8 *p, uint32 value)
{
	value = pg_hton32(value);
	memcpy(p, &value, sizeof(value));
}

static uint32
get_uint32(const uint8 *p)
{
	uint32 value;

	memcpy(&value, p, sizeof(value));
	return pg_ntoh32(value);
}

static int
distance_of(const OutboxRun *run, int i)
{
	const uint8 *p = run->entries + i * OUTBOX_RUN_ENTRY;

	return p[0] << 8 | p[1];
}

uint8 *
outbox_run_put(uint8 *p, int64 seq_low, TimestampTz started_at,
			   const OutboxRunAttempt *attempt)
{
	int	   distance = (int) (attempt->seq - seq_low);
	uint32 duration;

	p[0] = (uint8) (distance >> 8);
	p[1] = (uint8) distance;
	put_uint32(p + AT_TIME, (uint32) (int32) (attempt->started_at - started_at));
	memcpy(&duration, &attempt->duration, sizeof(duration));
	put_uint32(p + AT_DURATION, duration);
	memcpy(p + AT_ID, attempt->event_id.data, UUID_LEN);
	return p + OUTBOX_RUN_ENTRY;
}

bool
outbox_run_open(OutboxRun *run, int64 seq_low, TimestampTz started_at,
				const void *entries, size_t size)
{
	run->seq_low = seq_low;
	run->started_at = started_at;
	run->entries = entries;
	run->n = (int) Min(size / OUTBOX_RUN_ENTRY, OUTBOX_RUN_MOST);
	return size > 0 && size == (size_t) run->n * OUTBOX_RUN_ENTRY &&
		seq_low <= PG_INT64_MAX - OUTBOX_RUN_SPAN && IS_VALID_TIMESTAMP(started_at);
}

int
outbox_run_find(const OutboxRun *run, int64 seq)
{
	int low = 0;

	outbox_find_place(low, run->n, i, run->seq_low + distance_of(run, i) < seq);
	return low;
}

bool
outbox_run_get(const OutboxRun *run, int i, OutboxRunAttempt *attempt)
{
	const uint8 *p = run->entries + i * OUTBOX_RUN_ENTRY;
	int			 distance = distance_of(run, i);
	uint32		 duration = get_uint32(p + AT_DURATION);

	attempt->seq = run->seq_low + distance;
	attempt->started_at = run->started_at + (int32) get_uint32(p + AT_TIME);
	memcpy(&attempt->duration, &duration, sizeof(duration));
	memcpy(attempt->event_id.data, p + AT_ID, UUID_LEN);
	return distance <= OUTBOX_RUN_SPAN &&
		distance >= (i == 0 ? 0 : distance_of(run, i - 1)) && (i > 0 || distance == 0) &&
		IS_VALID_TIMESTAMP(attempt->started_at) && isfinite(attempt->duration);
}
