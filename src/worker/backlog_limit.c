/*
 * backlog_limit.c
 *	  Owns how much of the log an endpoint may retain: none of a piece that is due to be
 *	  emptied if it lacks little, and not more than outbox.max_backlog_size.
 *
 * The oldest events that such an endpoint lacks get rows in outbox.parked, and its position
 * moves on.  So the pieces of the log that only this endpoint needed can be emptied, and
 * copies of these events are kept (kept.h).  If the endpoints lack little of the log, the
 * rows wait for their first attempt.  An endpoint that lacks more retains the log, and
 * beyond outbox.max_backlog_size its rows are dead letters.  README.md says why.
 *
 * How much an endpoint retains is estimated from some blocks of each piece.  Any role may draw
 * numbers that no event gets, so they say nothing of its size.
 */
#include "base/outbox.h"

#include <math.h>

#include "base/crash_point.h"
#include "base/log_lines.h"
#include "base/query.h"
#include "base/settings.h"
#include "endpoint/subscribers.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "log/transaction.h"
#include "store/parked.h"
#include "store/unsettled.h"
#include "worker/backlog_limit.h"
#include "worker/busy.h"
#include "worker/dispatch.h"
#include "worker/head.h"
#include "worker/judge.h"
#include "worker/kept_limit.h"
#include "worker/loop.h"

#define LOOK_EVERY (1 * USECS_PER_SEC)

/* µs until the next try while outcomes cannot be settled. */
#define SETTLE_WAIT (50 * 1000)

/*
 * Requests wait during a step.  So many events get rows in one at most, and after this time
 * (µs) no other endpoint is begun with.
 */
#define STEP_EVENTS 500
#define STEP_TIME (5 * 1000)

/* At most 1/KEPT_SHARE of the log's events is kept until its next piece is emptied. */
#define KEPT_SHARE 4

static TimestampTz look_at;
static TimestampTz wait_until; /* no step before: outcomes have to be settled first */
static bool		   more;	   /* true if an endpoint can go on at once */
static int		   next;	   /* in the roster: whose turn it is */

/* By the last look.  The log may be retained from these numbers on (0: all of it). */
static int64 limit_cut; /* by outbox.max_backlog_size */
static int64 due_cut;	/* by the piece that is due to be emptied */

static int64 room; /* events that may be kept: a part of the log as it then was */

/* The events kept while this piece was in use. */
static uint32 piece;
static int64  kept;

/* True if an endpoint may be asked to retain less, or was. */
static bool
is_wanted(void)
{
	return outbox_max_backlog_size >= 0 ||
		pg_atomic_read_u64(&outbox_db->due_upto) != 0 || limit_cut != 0 || due_cut != 0;
}

TimestampTz
outbox_backlog_limit_next_time(void)
{
	if (!is_wanted())
		return DT_NOEND;
	if ((int64) pg_atomic_read_u64(&outbox_db->due_upto) != due_cut)
		return wait_until;
	return Max(wait_until, more ? 0 : look_at);
}

/* Returns about where in the log the endpoint is, as an event's number. */
static int64
place_of(OutboxEndpoint *ep)
{
	const OutboxCursor *c = outbox_window_frontier(ep, &outbox_loop.head);

	return Max(c->read->seq_low, c->last_seq);
}

static bool
is_at_head(const OutboxEndpoint *ep)
{
	return outbox_is_attached(ep) && ep->feed->window_count == 0;
}

/* True if it has not passed all numbers up to 'cut'. */
static bool
lacks_some(OutboxEndpoint *ep, int64 cut)
{
	if (ep->queue->nheld > 0 &&
		dlist_head_element(OutboxDelivery, held_node, &ep->queue->held)->seq <= cut)
		return true;
	return !is_at_head(ep) && place_of(ep) < cut;
}

static bool
may_be_moved(const OutboxEndpoint *ep)
{
	return !outbox_endpoint_rests(ep) && !ep->member.dropped && !ep->member.recreate &&
		!ep->member.put_off && ep->place.stored_version == ep->config.version &&
		!ep->status.unstorable && outbox_kept_limit_has_room(ep) &&
		!outbox_step_held(OUTBOX_STEP_BACKLOG, ep->id);
}

/* ------------------------------------------------------------ who keeps */

static int
compare_backlog(const void *a, const void *b)
{
	const OutboxEndpoint *x = *(OutboxEndpoint *const *) a;
	const OutboxEndpoint *y = *(OutboxEndpoint *const *) b;

	return x->feed->backlog < y->feed->backlog ? -1 : x->feed->backlog > y->feed->backlog;
}

/*
 * Decides for which endpoints events are kept: the ones that lack least, while all that
 * they lack of the log is at most 'left' events, and the ones whose tenant has a limit of
 * kept rows.  Events kept for an endpoint count as retained by it: it lacks at most 'allowed'
 * events.
 */
static void
choose(int64 left, double allowed)
{
	int64			 cut = Max(limit_cut, due_cut);
	OutboxEndpoint **lagging = palloc(sizeof(OutboxEndpoint *) *
									  Max(outbox_loop.roster.n, 1));
	int				 n = 0;

	for (int i = 0; i < outbox_loop.roster.n; i++)
	{
		OutboxEndpoint *ep = outbox_loop.roster.endpoints[i];

		ep->place.keeps = false;
		if (!outbox_endpoint_rests(ep) && may_be_moved(ep) && outbox_is_counted(ep) &&
			lacks_some(ep, cut) &&
			ep->feed->backlog + ep->table->rows[OUTBOX_ROW_RETRYING] +
					ep->table->rows[OUTBOX_ROW_BLOCKED] <=
				allowed)
			lagging[n++] = ep;
	}
	qsort(lagging, n, sizeof(OutboxEndpoint *), compare_backlog);
	for (int i = 0; i < n; i++)
	{
		bool limited = outbox_tenant_is_limited(lagging[i]->tenant);

		if (!limited)
			left -= lagging[i]->feed->backlog;
		lagging[i]->place.keeps = limited || left >= 0;
	}
	pfree(lagging);
}

/*
 * Blocks of a piece, evenly spread: the lowest number in each, and the bytes and events of the
 * piece that it stands for.  A block without a row, as of a transaction that was rolled back,
 * counts for the others.  Rows may be in any order in the table: VACUUM may have made space
 * for a later event in an earlier block.
 */
#define SAMPLED_BLOCKS "64"
#define SAMPLE_OF(piece) \
	"SELECT e.seq, t.bytes / count(*) OVER () AS bytes, t.blocks * e.n / t.sampled AS events" \
	" FROM (SELECT pg_total_relation_size('outbox." piece \
	"')::float8 AS bytes, b.blocks," \
	" LEAST(b.blocks, " SAMPLED_BLOCKS ") AS sampled" \
	" FROM (SELECT pg_relation_size('outbox." piece "')" \
	" / current_setting('block_size')::int8) b (blocks)) t" \
	" CROSS JOIN LATERAL generate_series(0, t.sampled - 1) i" \
	" CROSS JOIN LATERAL (SELECT min(r.seq) AS seq, count(*)::float8 AS n" \
	" FROM outbox." piece " r" \
	" WHERE r.ctid >= concat('(', i * t.blocks / t.sampled, ',0)')::tid" \
	" AND r.ctid < concat('(', i * t.blocks / t.sampled + 1, ',0)')::tid" \
	" HAVING count(*) > 0) e"
#define SAMPLE \
	SAMPLE_OF("events_0") \
	" UNION ALL " SAMPLE_OF("events_1") " UNION ALL " SAMPLE_OF("events_2")

/*
 * Reads how large the log is, how many events it has, and where it is to be cut: the events
 * from there on have more than 'allowed' bytes, by a part of a piece at most.
 */
static void
measure(double allowed, double *bytes, double *events, int64 *cut)
{
	outbox_plan_run("SELECT max(c.seq) FILTER (WHERE c.later > $1) - 1, sum(c.bytes),"
					" sum(c.events)"
					" FROM (SELECT s.*, sum(s.bytes) OVER (ORDER BY s.seq DESC) AS later"
					" FROM (" SAMPLE ") s) c",
					arg_datum(FLOAT8OID, Float8GetDatum(allowed)));
	outbox_read_row(0, into_int8(cut), into_float8(bytes), into_float8(events));
}

static void
look(void)
{
	double bytes, nevents;
	double allowed = outbox_max_backlog_size < 0 ?
		INFINITY :
		(double) outbox_max_backlog_size * 1024 * 1024;

	measure(allowed, &bytes, &nevents, &limit_cut);
	due_cut = (int64) pg_atomic_read_u64(&outbox_db->due_upto);
	if (piece != pg_atomic_read_u32(&outbox_db->piece))
		kept = 0;
	piece = pg_atomic_read_u32(&outbox_db->piece);
	room = (int64) nevents / KEPT_SHARE;
	choose(room - kept, bytes > 0 ? allowed / bytes * nevents : INFINITY);
}

/* ------------------------------------------------------------- moving on */

static void
log_overflow(OutboxEndpoint *ep)
{
	ereport(
		outbox_log_line_may(OUTBOX_LINE_BACKLOG, ep->config.name) ? LOG : DEBUG1,
		(errmsg(
			 "outbox endpoint \"%s\" retained more than outbox.max_backlog_size: " INT64_FORMAT
			 " deliveries are dead",
			 ep->config.name, ep->place.overflowed),
		 errhint("outbox.retry('%s') sends them, outbox.discard('%s') discards them.",
				 ep->config.name, ep->config.name)));
	ep->place.overflowed = 0;
}

/* Counts events of the endpoint that get rows. */
static void
count_overflow(OutboxEndpoint *ep, int n)
{
	outbox_loop.traffic.unsent += n;
	if (!ep->place.keeps)
		ep->place.overflowed += n;
	else if (outbox_tenant_is_limited(ep->tenant))
		ep->tenant->kept->rows += n;
	else
		kept += n;
}

/*
 * A page of the log that is read for all endpoints of one tenant, or of none, that are to be
 * moved on for the same reason.  It begins at the rearmost of their places.
 */
typedef struct MovedPage
{
	uint64			 number;
	OutboxEndpoint	*first; /* whose turn it is */
	int64			 cut;
	OutboxEndpoint	*leader; /* the rearmost */
	int				 n;
	OutboxEndpoint **members;
	OutboxLogQuery	*query;
	int				 taken; /* events that get rows */
} MovedPage;

static bool
lacks_nothing(const OutboxEndpoint *ep)
{
	return ep->place.keeps && outbox_is_counted(ep) && ep->feed->backlog == 0 &&
		!outbox_is_attached(ep) && outbox_head_is_beyond(&ep->feed->cursor);
}

static bool
is_behind(const OutboxEndpoint *ep, const OutboxEndpoint *other)
{
	const OutboxCursor *c = &ep->feed->cursor;
	const OutboxCursor *o = &other->feed->cursor;

	return outbox_cursor_near(c) < outbox_cursor_near(o) ||
		(outbox_cursor_near(c) == outbox_cursor_near(o) && c->read != o->read &&
		 outbox_tick_reaches(o->read, c->read));
}

/* Events that were read ahead are read again, to get rows. */
static void
consider(void *arg, OutboxEndpoint *ep)
{
	MovedPage *page = arg;
	bool	   keeps = page->first->place.keeps;

	if (ep->tenant != page->first->tenant || ep->place.keeps != keeps ||
		!may_be_moved(ep) || is_at_head(ep) || place_of(ep) >= page->cut ||
		lacks_nothing(ep) || (keeps && outbox_judge_later(ep)))
		return;
	if (outbox_is_attached(ep) || ep->feed->window_count > 0)
		outbox_window_drop(ep, &outbox_loop.head);
	page->members[page->n++] = ep;
	if (page->leader == NULL || is_behind(ep, page->leader))
		page->leader = ep;
}

static void
gather(MovedPage *page)
{
	OutboxTenant *t = page->first->tenant;

	page->members = palloc(sizeof(OutboxEndpoint *) *
						   (t ? t->nendpoints : outbox_loop.roster.n));
	if (t)
		outbox_subscribers_of_tenant(t, consider, page);
	else
		for (int i = 0; i < outbox_loop.roster.n; i++)
			consider(page, outbox_loop.roster.endpoints[i]);
}

/* Leaves the members for which the page from this place on has all that they lack. */
static void
join(MovedPage *page, const OutboxCursor *from, OutboxTick *tick)
{
	int n = 0;

	for (int i = 0; i < page->n; i++)
	{
		OutboxEndpoint *ep = page->members[i];
		OutboxCursor   *c = &ep->feed->cursor;

		if (ep != page->leader && !outbox_cursor_has_place_in(c, from, tick))
			continue;
		outbox_cursor_begin(c, tick);
		ep->feed->page = page->number;
		page->members[n++] = ep;
	}
	page->n = n;
}

/* An event becomes dead without its filter where that has no time. */
static OutboxFilterResult
judge(OutboxEndpoint *ep, OutboxRow *row)
{
	return outbox_row_forgotten(row) || (!ep->place.keeps && outbox_judge_later(ep)) ?
		OUTBOX_FILTER_YES :
		outbox_judge_now(ep, row);
}

static void *
page_wants(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	MovedPage		  *page = arg;
	OutboxSubscribers *s = outbox_subscribers_of(topic, len, row);
	bool			   wanted = false;

	for (int i = 0; i < s->n; i++)
	{
		OutboxEndpoint *ep = s->endpoints[i];

		s->result[i] = OUTBOX_FILTER_NO;
		if (ep->feed->page != page->number ||
			outbox_row_is_covered(row, &ep->feed->cursor))
			continue;
		outbox_step_blame(ep->id);
		s->result[i] = judge(ep, row);
		s->cancelled[i] = outbox_parked_is_cancelled(ep, outbox_row_seq(row));
		wanted = wanted || s->result[i] != OUTBOX_FILTER_NO;
	}
	outbox_step_blame(page->leader->id);
	return wanted ? s : NULL;
}

static void
take(MovedPage *page, OutboxEndpoint *ep, OutboxEvent *event, OutboxFilterResult filter)
{
	page->taken++;
	ep->place.dirty = true;
	outbox_busy_add(ep);
	if (event->forgotten)
	{
		outbox_tally_count(ep, OUTBOX_COUNT_CANCELLED);
		return;
	}
	outbox_endpoint_overflow(ep, event, filter);
	count_overflow(ep, 1);
}

/* If there are enough, the others leave before this event, and the page ends. */
static void
page_takes(void *arg, void *wanted, OutboxEvent *event)
{
	MovedPage		  *page = arg;
	OutboxSubscribers *s = wanted;

	for (int i = 0; i < s->n; i++)
	{
		OutboxEndpoint *ep = s->endpoints[i];
		OutboxCursor   *c = &ep->feed->cursor;
		bool			full = page->taken >= STEP_EVENTS;

		if (s->result[i] == OUTBOX_FILTER_NO)
			continue;
		c->last_seq = Max(c->last_seq, event->seq - full);
		if (full)
			ep->feed->page = 0;
		else if (!s->cancelled[i])
			take(page, ep, event, s->result[i]);
	}
	if (page->taken >= STEP_EVENTS)
		page->query->max_bytes = 0;
}

/* A member has come so far as the page did. */
static void
advance(const MovedPage *page, OutboxEndpoint *ep, const OutboxCursor *place)
{
	if (ep->feed->page == page->number)
		outbox_cursor_follow(&ep->feed->cursor, place);
	if (ep->place.keeps)
		(void) outbox_endpoint_overflow_ready(ep, PG_INT64_MAX);
	if (place_of(ep) < page->cut)
		return; /* how far it has read is stored later, or with a row */
	ep->place.dirty = true;
	outbox_busy_add(ep);
	if (ep->place.overflowed > 0)
		log_overflow(ep);
}

/* Returns how many events get rows. */
static int
read_page(OutboxEndpoint *first, int64 cut)
{
	static OutboxCursor place;
	MovedPage			page = {.number = ++outbox_loop.page, .first = first, .cut = cut};
	OutboxLogQuery		query = {.want = page_wants,
								 .take = page_takes,
								 .arg = &page,
								 .max_rows = OUTBOX_PAGE_ROWS,
								 .max_bytes = OUTBOX_PAGE_BYTES,
								 .tenant = outbox_tenant_name(first->tenant)};
	OutboxTick		   *tick;
	OutboxCursor	   *c;
	int64				begun;
	int64				begun_seq;

	page.query = &query;
	gather(&page);
	if (page.leader == NULL)
		return 0;
	c = &page.leader->feed->cursor;
	tick = outbox_head_target(c, first->tenant != NULL);
	if (tick == NULL)
		return 0;
	begun = place_of(page.leader);
	begun_seq = c->last_seq;
	outbox_cursor_set(&place, c->read, tick, outbox_cursor_start(c, tick));
	join(&page, &place, tick);
	outbox_step_blame(page.leader->id);
	outbox_log_read(&place, tick, &query, &outbox_fetched_lsn);
	for (int i = 0; i < page.n; i++)
		advance(&page, page.members[i], &place);

	/*
	 * The next step is due at once if this one got further.  Events that were committed
	 * late have lower numbers, so last_seq may change while the place does not.
	 */
	more = more || place_of(page.leader) != begun || c->last_seq != begun_seq;
	pfree(page.members);
	return page.taken;
}

/* Moves an endpoint on, by a page at most.  Returns how many events get rows. */
static int
shorten(OutboxEndpoint *ep, int64 cut)
{
	int n = outbox_endpoint_overflow_ready(ep, cut);

	count_overflow(ep, n);
	ep->place.dirty = true;
	outbox_busy_add(ep);
	if (is_at_head(ep) || place_of(ep) >= cut)
		return n;
	if (!lacks_nothing(ep))
		return n + read_page(ep, cut);
	outbox_cursor_clear(&ep->feed->cursor);
	return n;
}

/* Moves the endpoint on, and adds to n how many events get rows.  False: it stays. */
static bool
move_on(OutboxEndpoint *ep, int *n)
{
	int64 cut = ep->place.keeps ? Max(limit_cut, due_cut) : limit_cut;

	if (!may_be_moved(ep) || (ep->place.keeps && outbox_judge_later(ep)) ||
		!(ep->place.keeps ? lacks_some(ep, cut) : !is_at_head(ep) && place_of(ep) < cut))
		return false;
	outbox_step_blame(ep->id);
	*n += shorten(ep, cut);
	outbox_step_passed(OUTBOX_STEP_BACKLOG, ep->id);
	return true;
}

bool
outbox_backlog_limit_step(TimestampTz now)
{
	TimestampTz begun;
	bool		worked = false;
	int			n = 0;

	/*
	 * Events that get rows stay in memory until they are settled, so their number is
	 * bounded.
	 */
	if (outbox_loop.traffic.unsent >= OUTBOX_SETTLE_AFTER)
	{
		wait_until = now + SETTLE_WAIT;
		return true;
	}
	if (!outbox_txn_begin(false))
		return false;
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_EVENTS_2);
	if (now >= look_at || (int64) pg_atomic_read_u64(&outbox_db->due_upto) != due_cut)
	{
		look();
		look_at = now + LOOK_EVERY;
	}
	begun = GetCurrentTimestamp();
	more = false;
	for (int i = 0; limit_cut + due_cut > 0 && i < outbox_loop.roster.n; i++)
	{
		if (n >= STEP_EVENTS || (worked && GetCurrentTimestamp() - begun >= STEP_TIME))
		{
			more = true; /* the others' turn comes in the next step */
			break;
		}
		if (next >= outbox_loop.roster.n)
			next = 0;
		worked = move_on(outbox_loop.roster.endpoints[next++], &n) || worked;
	}
	outbox_step_blame(0);
	OUTBOX_CRASH_POINT("backlog.read");
	outbox_txn_commit();
	return true;
}

bool
outbox_backlog_limit_hurries(const OutboxEndpoint *ep)
{
	return due_cut != 0 && ep->table->rows[OUTBOX_ROW_RETRYING] < room;
}
