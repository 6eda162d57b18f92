/*
 * tally.c
 *	  Owns the figures of an endpoint's deliveries: rates, latencies, and
 *	  counters that never go down.
 *
 * A counter that goes down is read by Prometheus as a restart from 0, so that all that
 * it ever counted seems to have happened at once.  A crash can take back the last
 * settles.  So the views for monitoring show a count when it is stored and flushed.
 */
#include "base/outbox.h"

#include "common/hashfn.h"
#include "port/pg_bitutils.h"

#include "endpoint/tally.h"
#include "endpoint/tenant.h"

const OutboxCounterName outbox_counter_names[OUTBOX_COUNTERS] = {
	[OUTBOX_COUNT_DELIVERED] = {"delivered_total", NULL},
	[OUTBOX_COUNT_TIMEOUT] = {"failed_attempts_total", "timeout"},
	[OUTBOX_COUNT_CONNECT] = {"failed_attempts_total", "connect"},
	[OUTBOX_COUNT_DNS] = {"failed_attempts_total", "dns"},
	[OUTBOX_COUNT_TLS] = {"failed_attempts_total", "tls"},
	[OUTBOX_COUNT_ADDRESS] = {"failed_attempts_total", "address"},
	[OUTBOX_COUNT_CLOSED] = {"failed_attempts_total", "closed"},
	[OUTBOX_COUNT_PROTOCOL] = {"failed_attempts_total", "protocol"},
	[OUTBOX_COUNT_INTERNAL] = {"failed_attempts_total", "internal"},
	[OUTBOX_COUNT_HTTP_3XX] = {"failed_attempts_total", "http_3xx"},
	[OUTBOX_COUNT_HTTP_4XX] = {"failed_attempts_total", "http_4xx"},
	[OUTBOX_COUNT_HTTP_5XX] = {"failed_attempts_total", "http_5xx"},
	[OUTBOX_COUNT_ANSWER] = {"failed_attempts_total", "answer"},
	[OUTBOX_COUNT_MAX_ATTEMPTS] = {"died_total", "max_attempts"},
	[OUTBOX_COUNT_MAX_AGE] = {"died_total", "max_age"},
	[OUTBOX_COUNT_EXPIRED] = {"died_total", "expired"},
	[OUTBOX_COUNT_ABORTED] = {"died_total", "aborted by receiver"},
	[OUTBOX_COUNT_INVALID] = {"died_total", "invalid event"},
	[OUTBOX_COUNT_FILTER] = {"died_total", "filter failed"},
	[OUTBOX_COUNT_BACKLOG] = {"died_total", "backlog"},
	[OUTBOX_COUNT_GONE] = {"died_total", "event is gone"},
	[OUTBOX_COUNT_UNREADABLE] = {"died_total", "unreadable"},
	[OUTBOX_COUNT_OPENINGS] = {"breaker_openings_total", NULL},
	[OUTBOX_COUNT_CANCELLED] = {"cancelled_total", NULL},
	[OUTBOX_COUNT_DEDUPLICATED] = {"deduplicated_total", NULL},
	[OUTBOX_COUNT_UNMATCHED] = {"unmatched_total", NULL},
};

/* The counters of an endpoint that has no tally. */
typedef struct OutboxCounts
{
	int64		delivered;
	int64		failed_attempts;
	TimestampTz last_success_at;
	char	   *last_error; /* behind the counts (NULL: none) */
	int			n;			/* the other counts are 0 */
	int64		count[FLEXIBLE_ARRAY_MEMBER];
} OutboxCounts;

/* Constant, so that writing to it ends the process. */
static const OutboxTally none;

/* Memory that many endpoints had at a time is given back when they rest. */
static MemoryContext tallies_cxt;	 /* counts and errors */
static MemoryContext tally_slab;	 /* OutboxTally */
static MemoryContext histogram_slab; /* OutboxHistogram */

/* Figures that are to be written: the oldest are lost where that fails for hours. */
#define FIGURES_AT_MOST 100000

static dlist_head open_figures = DLIST_STATIC_INIT(open_figures);
static dlist_head figures = DLIST_STATIC_INIT(figures);
static int		  nfigures; /* entries in them */

typedef struct BlockEntry
{
	uint64		   key; /* which bucket and block */
	uint32		   status;
	OutboxFigures *figures;
} BlockEntry;

#define SH_PREFIX blocks
#define SH_ELEMENT_TYPE BlockEntry
#define SH_KEY_TYPE uint64
#define SH_KEY key
#define SH_HASH_KEY(tb, k) murmurhash32((uint32) ((k) ^ ((k) >> 32)))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static blocks_hash *blocks; /* of figures that are to be written */

static void
make_contexts(void)
{
	tallies_cxt = AllocSetContextCreate(TopMemoryContext, "outbox tallies",
										ALLOCSET_DEFAULT_SIZES);
	tally_slab = SlabContextCreate(tallies_cxt, "outbox tally", SLAB_DEFAULT_BLOCK_SIZE,
								   sizeof(OutboxTally));
	histogram_slab = SlabContextCreate(tallies_cxt, "outbox latencies",
									   SLAB_DEFAULT_BLOCK_SIZE, sizeof(OutboxHistogram));
	blocks = blocks_create(tallies_cxt, 16, NULL);
}

/* ------------------------------------------------------------ figures */

dlist_head *
outbox_tally_figures(void)
{
	return &figures;
}

static uint64
block_key(TimestampTz at, int32 block)
{
	return (uint64) (at / OUTBOX_FIGURES_TIME) << 32 | (uint32) block;
}

void
outbox_tally_free_figures(OutboxFigures *f)
{
	blocks_delete(blocks, block_key(f->at, f->block));
	dlist_delete(&f->node);
	nfigures -= f->n;
	pfree(f->entries.data);
	pfree(f);
}

void
outbox_put_entry(StringInfo to, uint32 endpoint_id, const char *tenant, size_t length,
				 const uint8 *counts, size_t size)
{
	uint8 *p;

	enlargeStringInfo(to, (int) (3 * OUTBOX_NUMBER_BYTES + length + size));
	p = outbox_put_number((uint8 *) to->data + to->len, endpoint_id);
	p = outbox_put_number(p, (uint32) length);
	if (length > 0)
		memcpy(p, tenant, length);
	p = outbox_put_number(p + length, (uint32) size);
	memcpy(p, counts, size);
	to->len = (int) (p + size - (uint8 *) to->data);
}

static OutboxFigures *
figures_of_block(TimestampTz at, int32 block)
{
	bool		   found;
	BlockEntry	  *entry = blocks_insert(blocks, block_key(at, block), &found);
	OutboxFigures *f;
	MemoryContext  old;

	if (found)
		return entry->figures;
	old = MemoryContextSwitchTo(tallies_cxt);
	entry->figures = f = palloc(sizeof(OutboxFigures));
	f->at = at;
	f->block = block;
	f->n = 0;
	initStringInfo(&f->entries);
	dlist_push_tail(&figures, &f->node);
	MemoryContextSwitchTo(old);
	return f;
}

static void
keep_figures(int32 id, const char *tenant, TimestampTz at, const uint8 *counts,
			 size_t size)
{
	OutboxFigures *f = figures_of_block(at, id / OUTBOX_FIGURES_BLOCK);

	outbox_put_entry(&f->entries, (uint32) id, tenant, tenant ? strlen(tenant) : 0,
					 counts, size);
	f->n++;
	if (++nfigures > FIGURES_AT_MOST)
		outbox_tally_free_figures(dlist_head_element(OutboxFigures, node, &figures));
}

static uint8 *
put_latencies(uint8 *p, const OutboxHistogram *h, TimestampTz at)
{
	const uint32 *rows[OUTBOX_HISTOGRAM_MINUTES];
	int			  nrows = 0;

	for (int i = 0; i < OUTBOX_HISTOGRAM_MINUTES; i++)
		if (h->minute[i] / OUTBOX_HISTOGRAM_MINUTES == at / OUTBOX_FIGURES_TIME)
			rows[nrows++] = h->count[i];
	for (int i = h->first; i < h->nbuckets; i++)
	{
		int64 n = 0;

		for (int k = 0; k < nrows; k++)
			n += rows[k][i];
		p = outbox_put_figure(p, i, n);
	}
	return p;
}

static void
end_figures(OutboxEndpoint *ep)
{
	OutboxTally *t = ep->tally;
	TimestampTz	 at = t->figures_until - OUTBOX_FIGURES_TIME;
	uint8 counts[(1 + OUTBOX_NUMBER_BYTES) * (OUTBOX_HISTOGRAM_BUCKETS + OUTBOX_FIGURES)];
	uint8 *p = counts;

	if (t->figures_until == 0)
		return;
	t->figures_until = 0;
	dlist_delete(&t->figures_node);
	if (t->latency)
		p = put_latencies(p, t->latency, at);
	p = outbox_put_figure(p, OUTBOX_FIGURE_COUNTER + OUTBOX_COUNT_DELIVERED,
						  t->delivered - t->figures_delivered);
	for (int c = OUTBOX_COUNT_DELIVERED + 1; t->figures_failed && c < OUTBOX_FIGURES; c++)
		p = outbox_put_figure(p, OUTBOX_FIGURE_COUNTER + c,
							  t->count[c] - t->figures_base[c]);
	keep_figures(ep->id, outbox_tenant_name(ep->tenant), at, counts, p - counts);
}

TimestampTz
outbox_tally_figures_until(void)
{
	return dlist_is_empty(&open_figures) ?
		DT_NOEND :
		dlist_head_element(OutboxTally, figures_node, &open_figures)->figures_until;
}

void
outbox_tally_end_open(TimestampTz until)
{
	while (!dlist_is_empty(&open_figures) && outbox_tally_figures_until() <= until &&
		   nfigures < FIGURES_AT_MOST)
		end_figures(
			dlist_head_element(OutboxTally, figures_node, &open_figures)->figures_of);
}

void
outbox_tally_look(TimestampTz at, int64 oldest_usec, int64 memory)
{
	uint8  counts[3 * (1 + OUTBOX_NUMBER_BYTES)];
	uint8 *p = outbox_put_figure(counts, OUTBOX_FIGURE_LOOKS, 1);

	if (tallies_cxt == NULL)
		make_contexts();
	p = outbox_put_figure(p, OUTBOX_FIGURE_OLDEST, oldest_usec / (USECS_PER_SEC / 10));
	p = outbox_put_figure(p, OUTBOX_FIGURE_MEMORY, memory / 1024);
	keep_figures(0, NULL, at, counts, p - counts);
}

/* Something is about to be counted at this time. */
static void
begin_figures(OutboxEndpoint *ep, TimestampTz now)
{
	OutboxTally *t = ep->tally;

	if (now < t->figures_until)
		return;
	end_figures(ep);
	t->figures_of = ep;
	dlist_push_tail(&open_figures, &t->figures_node);
	t->figures_until = now - now % OUTBOX_FIGURES_TIME + OUTBOX_FIGURES_TIME;
	t->figures_delivered = t->delivered;
	t->figures_failed = false;
}

/* ------------------------------------------------------------ counters */

void
outbox_tally_count(OutboxEndpoint *ep, OutboxCounter counter)
{
	OutboxTally *t = ep->tally;

	if (counter < OUTBOX_FIGURES)
	{
		begin_figures(ep, GetCurrentTimestamp());
		if (!t->figures_failed)
			memcpy(t->figures_base, t->count, sizeof(t->figures_base));
		t->figures_failed = true;
	}
	t->count[counter]++;
	outbox_count_total(counter, 1);
}

static OutboxCounter
failure_class(const OutboxOutcome *o)
{
	static const OutboxCounter of[] = {
		[OUTBOX_FAILURE_NONE] = OUTBOX_COUNT_ANSWER,
		[OUTBOX_FAILURE_DNS] = OUTBOX_COUNT_DNS,
		[OUTBOX_FAILURE_CONNECT] = OUTBOX_COUNT_CONNECT,
		[OUTBOX_FAILURE_TLS] = OUTBOX_COUNT_TLS,
		[OUTBOX_FAILURE_TIMEOUT] = OUTBOX_COUNT_TIMEOUT,
		[OUTBOX_FAILURE_ADDRESS] = OUTBOX_COUNT_ADDRESS,
		[OUTBOX_FAILURE_PROTOCOL] = OUTBOX_COUNT_PROTOCOL,
		[OUTBOX_FAILURE_CLOSED] = OUTBOX_COUNT_CLOSED,
		[OUTBOX_FAILURE_INTERNAL] = OUTBOX_COUNT_INTERNAL,
	};

	if (o->failure == OUTBOX_FAILURE_NONE && o->status >= 300 && o->status < 600)
		return o->status < 400 ? OUTBOX_COUNT_HTTP_3XX :
			o->status < 500	   ? OUTBOX_COUNT_HTTP_4XX :
								 OUTBOX_COUNT_HTTP_5XX;
	return of[o->failure];
}

/* Returns the place of this second in the rings, and clears the seconds before it. */
static int
recent_place(OutboxTally *t, TimestampTz now)
{
	int64 second = now / USECS_PER_SEC;

	for (int64 s = Max(t->recent_second + 1, second - 59); s <= second; s++)
		t->recent[s % 60] = t->recent_failed[s % 60] = 0;
	t->recent_second = Max(t->recent_second, second);
	return second % 60;
}

void
outbox_tally_failure(OutboxEndpoint *ep, const OutboxOutcome *o)
{
	ep->tally->recent_failed[recent_place(ep->tally, GetCurrentTimestamp())]++;
	ep->tally->failed_attempts++;
	outbox_tally_count(ep, failure_class(o));
}

void
outbox_tally_death(OutboxEndpoint *ep, const char *reason)
{
	for (int c = OUTBOX_COUNT_MAX_ATTEMPTS; c <= OUTBOX_COUNT_UNREADABLE; c++)
		if (strcmp(outbox_counter_names[c].label, reason) == 0)
			outbox_tally_count(ep, c);
}

/* Nothing has changed since the counts were stored. */
static void
take_candidate(OutboxEndpoint *ep, XLogRecPtr lsn)
{
	memcpy(ep->tally->candidate, ep->tally->count, sizeof(ep->tally->count));
	ep->tally->candidate[OUTBOX_COUNT_DELIVERED] = ep->tally->delivered;
	ep->tally->candidate_lsn = lsn;
	ep->tally->settled_lsn = 0;
}

void
outbox_tally_stored(OutboxEndpoint *ep, XLogRecPtr lsn)
{
	if (ep->tally->candidate_lsn == 0)
		take_candidate(ep, lsn);
	else
		ep->tally->settled_lsn = lsn;
}

/*
 * Where the counts have changed since they were stored, the next settle makes the next
 * candidate.
 */
bool
outbox_tally_flushed(OutboxEndpoint *ep, XLogRecPtr flushed)
{
	bool others;

	if (ep->tally->candidate_lsn == 0 || ep->tally->candidate_lsn > flushed)
		return false;
	others = memcmp(ep->tally->shown, ep->tally->candidate, sizeof(ep->tally->shown)) !=
		0;
	memcpy(ep->tally->shown, ep->tally->candidate, sizeof(ep->tally->shown));
	ep->tally->candidate_lsn = 0;
	if (ep->tally->settled_lsn != 0 && !ep->place.dirty)
		take_candidate(ep, ep->tally->settled_lsn);
	ep->tally->settled_lsn = 0;
	return others;
}

bool
outbox_tally_waits(const OutboxEndpoint *ep)
{
	return ep->tally->candidate_lsn != 0;
}

void
outbox_tally_resume(OutboxEndpoint *ep)
{
	OutboxStats s;

	/* A second in the future means that the clock was set back. */
	if (!outbox_stats_fetch(MyDatabaseId, ep->id, &s) ||
		s.recent_second > GetCurrentTimestamp() / USECS_PER_SEC)
		return;
	ep->tally->recent_second = s.recent_second;
	memcpy(ep->tally->recent, s.recent, sizeof(ep->tally->recent));
	memcpy(ep->tally->recent_failed, s.recent_failed, sizeof(ep->tally->recent_failed));
}

void
outbox_tally_wake(OutboxEndpoint *ep)
{
	OutboxTally		   *t;
	const OutboxCounts *kept = ep->counts;

	if (ep->tally != NULL && ep->tally != &none)
		return;
	if (tallies_cxt == NULL)
		make_contexts();
	ep->tally = t = MemoryContextAllocZero(tally_slab, sizeof(OutboxTally));
	if (kept == NULL)
		return;
	t->delivered = kept->delivered;
	t->failed_attempts = kept->failed_attempts;
	t->last_success_at = kept->last_success_at;
	memcpy(t->count, kept->count, sizeof(int64) * kept->n);
	memcpy(t->shown, kept->count, sizeof(int64) * kept->n);
	t->shown[OUTBOX_COUNT_DELIVERED] = kept->delivered;
	if (kept->last_error)
		t->last_error = MemoryContextStrdup(tallies_cxt, kept->last_error);
	pfree(ep->counts);
	ep->counts = NULL;
}

static OutboxCounts *
keep_counts(const OutboxTally *t)
{
	size_t		  error_size = t->last_error ? strlen(t->last_error) + 1 : 0;
	size_t		  size;
	int			  n = OUTBOX_COUNTERS;
	OutboxCounts *kept;

	while (n > 0 && t->count[n - 1] == 0)
		n--;
	if (n == 0 && t->delivered == 0 && t->failed_attempts == 0 && error_size == 0)
		return NULL;
	size = offsetof(OutboxCounts, count) + sizeof(int64) * n;
	kept = MemoryContextAllocZero(tallies_cxt, size + error_size);
	kept->delivered = t->delivered;
	kept->failed_attempts = t->failed_attempts;
	kept->last_success_at = t->last_success_at;
	kept->n = n;
	memcpy(kept->count, t->count, sizeof(int64) * n);
	if (error_size > 0)
	{
		kept->last_error = (char *) kept + size;
		memcpy(kept->last_error, t->last_error, error_size);
	}
	return kept;
}

void
outbox_tally_free(OutboxEndpoint *ep)
{
	if (ep->counts)
		pfree(ep->counts);
	ep->counts = NULL;
	if (ep->tally == &none)
		return;
	end_figures(ep);
	if (ep->tally->latency)
		pfree(ep->tally->latency);
	if (ep->tally->last_error)
		pfree(ep->tally->last_error);
	pfree(ep->tally);
	ep->tally = unconstify(OutboxTally *, &none);
}

void
outbox_tally_rest(OutboxEndpoint *ep, TimestampTz now)
{
	const OutboxTally *t = ep->tally;
	OutboxCounts	  *kept;

	if (t->latency || t->figures_until > now || outbox_tally_is_recent(ep, now) ||
		outbox_tally_waits(ep) || t->shown[OUTBOX_COUNT_DELIVERED] != t->delivered ||
		memcmp(t->count + 1, t->shown + 1, sizeof(int64) * (OUTBOX_COUNTERS - 1)) != 0)
		return;
	kept = keep_counts(t);
	outbox_tally_free(ep);
	ep->counts = kept;
}

void
outbox_tally_error(OutboxEndpoint *ep, const char *error)
{
	char *copy = MemoryContextStrdup(tallies_cxt, error);

	if (ep->tally->last_error)
		pfree(ep->tally->last_error);
	ep->tally->last_error = copy;
}

bool
outbox_tally_is_recent(const OutboxEndpoint *ep, TimestampTz now)
{
	return ep->tally->recent_second + SECS_PER_MINUTE >= now / USECS_PER_SEC;
}

/* Returns 4 * log2(n), rounded down: there are four buckets for each doubling, from 1 on. */
static int
quarter_doublings(uint64 n)
{
	/* 2 to the power of 63 + 1/4, 63 + 1/2 and 63 + 3/4, rounded up */
	static const uint64 steps[] = {UINT64CONST(0x9837f0518db8a970),
								   UINT64CONST(0xb504f333f9de6485),
								   UINT64CONST(0xd744fccad69d6af5)};
	int					highest = pg_leftmost_one_pos64(n);
	int					quarters = 4 * highest;

	n <<= 63 - highest;
	for (size_t i = 0; i < lengthof(steps); i++)
		quarters += n >= steps[i];
	return quarters;
}

void
outbox_tally_latency(OutboxEndpoint *ep, int64 usec, TimestampTz now)
{
	OutboxHistogram *h;
	int64			 minute = now / USECS_PER_MINUTE;
	int				 row = minute % OUTBOX_HISTOGRAM_MINUTES;
	int				 bucket;

	begin_figures(ep, now);
	if (ep->tally->latency == NULL)
		ep->tally->latency = MemoryContextAllocZero(histogram_slab,
													sizeof(OutboxHistogram));
	h = ep->tally->latency;
	if (h->minute[row] != minute)
	{
		memset(h->count[row], 0, sizeof(h->count[row]));
		h->minute[row] = minute;
	}
	bucket = usec <= 1 ? 0 : quarter_doublings((uint64) usec);
	bucket = Min(bucket, OUTBOX_HISTOGRAM_BUCKETS - 1);
	h->count[row][bucket]++;
	h->first = h->nbuckets == 0 ? bucket : Min(h->first, bucket);
	h->nbuckets = Max(h->nbuckets, bucket + 1);
}

void
outbox_tally_success(OutboxEndpoint *ep, TimestampTz now)
{
	begin_figures(ep, now);
	ep->tally->recent[recent_place(ep->tally, now)]++;
	ep->tally->delivered++;
	outbox_count_total(OUTBOX_COUNT_DELIVERED, 1);
	ep->tally->last_success_at = now;
}
