/*
 * parked_look.c
 *	  Owns which rows of outbox.parked memory has: a bounded part, and the rest is
 *	  read when it is needed.
 *
 * An endpoint may have millions of rows there.  Memory has the retries that are due
 * next, and the lanes of a number of keys.  If that is not everything, the table is
 * read through its indexes: for further retries when the first ones are used up,
 * for the keys of events before they take their place, and for a lane before it
 * advances.  The rows are counted in slices.
 */
#include "base/outbox.h"

#include "utils/fmgrprotos.h"

#include "base/query.h"
#include "endpoint/lane.h"
#include "endpoint/parking.h"
#include "endpoint/retries.h"
#include "endpoint/window.h"
#include "log/transaction.h"
#include "store/parked.h"

/*
 * How many retries, and how many lanes, all endpoints may have in memory together,
 * and how many one endpoint may have in any case.
 */
#ifndef OUTBOX_PARKED_ROOM
#define OUTBOX_PARKED_ROOM 20000
#define OUTBOX_PARKED_ROOM_LEAST 16
#endif

/* In one step: rows that are counted, and keys that are looked up. */
#define COUNT_ROWS 5000
#define ASK_KEYS 500

/* Keys with followers that are read at once when an endpoint is loaded. */
#define FIRST_KEYS 1000

/* Rows that are made due together because they are in no lane any more. */
#define UNBLOCK_ROWS 1000

#define OF_ENDPOINT " WHERE p.endpoint_id = $1"
#define STATUS " AND p.status = "

/* Written as in the index, so that it is used. */
#define BLOCKING_REASON \
	" AND p.reason = ANY (ARRAY['max_attempts', 'max_age', 'aborted by receiver'])"

static int room = OUTBOX_PARKED_ROOM_LEAST;

void
outbox_parked_share_room(int64 nendpoints)
{
	room = (int) Max(OUTBOX_PARKED_ROOM / Max(nendpoints, 1), OUTBOX_PARKED_ROOM_LEAST);
}

/* To be called only right after a settle, when every row is in the table. */
void
outbox_parked_keep_room(OutboxEndpoint *ep)
{
	if (ep->queue->nretries > 2 * room)
		outbox_retries_forget(ep);
	if (ep->config.ordering == OUTBOX_ORDER_KEY && outbox_lanes_count(ep) > 2 * room)
		outbox_lanes_evict(ep);
}

/* ------------------------------------------------------------- retries */

/*
 * Returns the seqs of rows that say 'retrying' although memory has these deliveries, or has
 * found their events gone, and their number in '*n'.
 */
static int64 *
known_retries(OutboxEndpoint *ep, int *n)
{
	int64 *loaded = outbox_parking_loaded_retries(ep, n);

	return outbox_parked_add_gone(ep->id, loaded, n);
}

static bool
wants_retries(const OutboxEndpoint *ep)
{
	return !outbox_has_all_retries(ep) && ep->queue->nretries <= room / 4;
}

/*
 * Reads the next retries, in the order of their due times.  A group of a batch that
 * the bound divides comes back in two parts.
 */
static void
read_retries(OutboxEndpoint *ep)
{
	int			n;
	int64	   *known = known_retries(ep, &n);
	TimestampTz latest = GetCurrentTimestamp() + ep->pace.limits.backoff_max;

	qsort(known, n, sizeof(int64), outbox_compare_int8);
	outbox_plan_run(
		"SELECT p.seq, p.key, p.next_attempt_at, p.batch, p.attempts > 0 FROM outbox.parked p" OF_ENDPOINT
			STATUS "'retrying'"
		" AND ROW(p.next_attempt_at, p.seq) > ROW($2, $3)"
		" ORDER BY p.next_attempt_at, p.seq LIMIT $4",
		arg_int4(ep->id), arg_time(ep->queue->retries_due),
		arg_int8(ep->queue->retries_seq), arg_int8(room));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		int64		seq;
		char	   *key;
		TimestampTz due;
		int64		group;
		bool		tried;

		outbox_read_row(i, into_int8(&seq), into_text(&key), into_time(&due),
						into_int8(&group), into_bool(&tried));
		ep->queue->retries_due = due;
		ep->queue->retries_seq = seq;
		if (bsearch(&seq, known, n, sizeof(int64), outbox_compare_int8))
			continue;

		/*
		 * A wait beyond backoff_max means that the clock was set back while no
		 * worker ran.
		 */
		if (due > latest)
			due = ep->queue->met_at + ep->pace.limits.backoff_max;
		outbox_retries_push(ep, seq, due, group, tried,
							outbox_lane_get(ep, outbox_lane_key(ep, key), false));
	}
	if (SPI_processed < (uint64) room)
		ep->queue->retries_due = DT_NOEND;
}

/* --------------------------------------------------------------- lanes */

#define OF_KEY " AND p.key >= k.key AND p.key <= k.key"

/*
 * Reads the table's rows of these keys, or with strict ordering of the only lane.  A
 * retry that memory knows is left out of the answer.
 *
 * Each part of an answer is the first row of one index.  The order has the columns of
 * that index, and the key is a range, so no other index fits, whatever the statistics
 * say.  For an EXISTS the planner may read all rows of the endpoint into a hash table.
 */
static void
ask_table(OutboxEndpoint *ep, Datum *keys, int nkeys)
{
	int		  n;
	int64	 *known = known_retries(ep, &n);
	OutboxArg array = arg_datum(TEXTARRAYOID, outbox_array(keys, nkeys, TEXTOID));

#define ASK(of_key, first_retry, first_follower) \
	outbox_plan_run( \
		"SELECT k.key," \
		" (SELECT p.seq FROM outbox.parked p" OF_ENDPOINT of_key STATUS \
		"'retrying' AND NOT p.seq = ANY ($3)" \
		" ORDER BY " first_retry ", p.seq LIMIT 1) IS NOT NULL," \
		" $4 AND (SELECT p.seq FROM outbox.parked p" OF_ENDPOINT of_key STATUS \
		"'dead'" BLOCKING_REASON " ORDER BY p.key LIMIT 1) IS NOT NULL," \
		" COALESCE((SELECT p.seq FROM outbox.parked p" OF_ENDPOINT of_key STATUS \
		"'blocked' ORDER BY " first_follower " LIMIT 1), -1)" \
		" FROM pg_catalog.unnest($2) k(key)", \
		arg_int4(ep->id), array, arg_int8s(known, n), \
		arg_bool(ep->config.block_on_dead))
	if (ep->config.ordering == OUTBOX_ORDER_STRICT)
		ASK("", "p.next_attempt_at", "p.seq");
	else
		ASK(OF_KEY, "p.key", "p.key, p.seq");
#undef ASK
}

/*
 * Looks up keys and passes the answers to their lanes.  'idle' is true if a key
 * that something blocks needs no lane now.
 */
static void
ask_keys(OutboxEndpoint *ep, Datum *keys, int nkeys, bool idle)
{
	ask_table(ep, keys, nkeys);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *key;
		bool		retrying, dead;
		int64		follower;
		OutboxLane *lane;

		outbox_read_row(i, into_text(&key), into_bool(&retrying), into_bool(&dead),
						into_int8(&follower));
		lane = outbox_lane_find(ep, key);
		if (lane == NULL &&
			((!retrying && !dead && follower < 0) || (idle && (retrying || dead))))
			continue;
		if (lane == NULL)
			lane = outbox_lane_get(ep, key, false);
		else if (lane->asked)
			continue;
		outbox_lane_answer(ep, lane, retrying, dead, follower);
	}
}

static void
ask_lanes(OutboxEndpoint *ep)
{
	Datum	  *keys = palloc(sizeof(Datum) * ASK_KEYS);
	int		   n = 0;
	dlist_iter iter;

	dlist_foreach(iter, &ep->queue->asking) if (n < ASK_KEYS)
		keys[n++] = CStringGetTextDatum(
			dlist_container(OutboxLane, asking_node, iter.cur)->key);
	if (n > 0)
		ask_keys(ep, keys, n, false);
}

static bool
wants_window(const OutboxEndpoint *ep)
{
	return !ep->queue->lanes_all && ep->feed->window_known < ep->feed->window_count;
}

/* Looks up the keys of events in the window, before they take their place. */
static void
ask_for_window(OutboxEndpoint *ep)
{
	Datum *keys = palloc(sizeof(Datum) * ASK_KEYS);
	int	   known = ep->feed->window_known;
	int	   n = 0;

	for (; known < ep->feed->window_count && n < ASK_KEYS; known++)
	{
		OutboxEvent *event = outbox_window_at(ep, known)->event;

		if (event->order_key && outbox_lane_find(ep, event->order_key) == NULL)
			keys[n++] = CStringGetTextDatum(event->order_key);
	}
	if (n > 0)
		ask_keys(ep, keys, n, false);
	ep->feed->window_known = known;
}

/*
 * Reads the next 'max' keys above 'from' that have followers, each with the lowest
 * seq of these.
 */
static void
read_keys(OutboxEndpoint *ep, const char *from, int max)
{
#define NEXT_KEY(from) \
	"(SELECT p.key, p.seq FROM outbox.parked p" OF_ENDPOINT STATUS "'blocked'" \
	" AND p.key > " from " ORDER BY p.key, p.seq LIMIT 1) q"
	outbox_plan_run(
		"WITH RECURSIVE k(key, seq, n) AS (SELECT q.key, q.seq, 1 FROM " NEXT_KEY(
			"$2") " UNION ALL SELECT q.key, q.seq, k.n + 1"
				  " FROM k CROSS JOIN LATERAL " NEXT_KEY(
					  "k.key") " WHERE k.n < $3)"
							   " SELECT k.key, k.seq FROM k ORDER BY k.n",
		arg_int4(ep->id), arg_text(from), arg_int4(max));
}

/*
 * Finds followers whose head has ended, and which were not loaded before the worker
 * ended.  Nothing else looks for them.
 */
static void
sweep(OutboxEndpoint *ep)
{
	Datum *keys = palloc(sizeof(Datum) * ASK_KEYS);
	char  *former = ep->table->sweep_key;
	char  *key;
	int	   n = 0;

	read_keys(ep, former, ASK_KEYS);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		outbox_read_row(i, into_text(&key));
		keys[n++] = CStringGetTextDatum(key);
	}
	if (n > 0)
		ask_keys(ep, keys, n, true);

	/*
	 * Nothing below throws an error, after which these keys would have to be read
	 * again.
	 */
	ep->table->sweep_key = n < ASK_KEYS ?
		NULL :
		MemoryContextStrdup(ep->cxt, TextDatumGetCString(keys[n - 1]));
	pfree(former);
}

/*
 * A row that is 'blocked' but in no lane was blocked under another ordering, so it
 * is made due.
 */
void
outbox_parked_unblock(OutboxEndpoint *ep)
{
#define UNBLOCK(which) \
	"UPDATE outbox.parked u SET status = 'retrying', next_attempt_at = pg_catalog.now()" \
	" WHERE u.endpoint_id = $1 AND u.seq = ANY" \
	" (ARRAY(SELECT p.seq FROM outbox.parked p" OF_ENDPOINT STATUS "'blocked'" which \
	" LIMIT $2))" \
	" RETURNING u.seq, u.next_attempt_at"
	if (ep->config.ordering == OUTBOX_ORDER_NONE)
		outbox_plan_run(UNBLOCK(""), arg_int4(ep->id), arg_int8(UNBLOCK_ROWS));
	else
		outbox_plan_run(UNBLOCK(" AND p.key IS NULL"), arg_int4(ep->id),
						arg_int8(UNBLOCK_ROWS));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		int64		seq;
		TimestampTz due;

		outbox_read_row(i, into_int8(&seq), into_time(&due));
		outbox_parking_count_row(ep, seq, OUTBOX_ROW_BLOCKED, -1);
		outbox_parking_count_row(ep, seq, OUTBOX_ROW_RETRYING, 1);
		outbox_retries_add_parked(ep, seq, due, NULL, 0);
	}
	ep->table->unblocking = SPI_processed == UNBLOCK_ROWS;
}

/* ------------------------------------------------------------ counting */

static void
count_rows(OutboxEndpoint *ep)
{
	int64 n = 0;

	outbox_plan_run(
		"SELECT pg_catalog.array_position('{retrying,blocked,dead}', q.status),"
		" pg_catalog.count(*), pg_catalog.max(q.seq) FROM"
		" (SELECT p.status, p.seq FROM outbox.parked p" OF_ENDPOINT
		" AND p.seq > $2 ORDER BY p.seq LIMIT $3) q"
		" GROUP BY q.status",
		arg_int4(ep->id), arg_int8(ep->table->rows_upto), arg_int8(COUNT_ROWS));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		int32 status;
		int64 rows, upto;

		outbox_read_row(i, into_int4(&status), into_int8(&rows), into_int8(&upto));
		if (status > 0)
			ep->table->rows[status - 1] += rows;
		n += rows;
		ep->table->rows_upto = Max(ep->table->rows_upto, upto);
	}
	if (n < COUNT_ROWS)
		ep->table->rows_upto = PG_INT64_MAX;
}

void
outbox_parked_count_again(OutboxEndpoint *ep)
{
	memset(ep->table->rows, 0, sizeof(ep->table->rows));
	ep->table->rows_upto = PG_INT64_MIN;
	ep->table->given_up = 0;
}

/* ----------------------------------------------------------- cancelled */

bool
outbox_parked_is_cancelled(OutboxEndpoint *ep, int64 seq)
{
	bool found;

	if (seq > ep->feed->cancelled_upto)
		return false;
	outbox_lock_indexes(OUTBOX_TABLE_PARKED, OUTBOX_TABLE_PARKED);
	found = outbox_plan_run("SELECT 1 FROM outbox.parked p" OF_ENDPOINT
							" AND p.seq = $2" STATUS "'cancelled'",
							arg_int4(ep->id), arg_int8(seq)) > 0;
	SPI_freetuptable(SPI_tuptable);
	return found;
}

/* ---------------------------------------------------------------- steps */

static void
load_dead(OutboxEndpoint *ep)
{
	bool strict = ep->config.ordering == OUTBOX_ORDER_STRICT;
	int	 max = strict ? 1 : room;

	outbox_plan_run("SELECT p.key FROM outbox.parked p" OF_ENDPOINT STATUS
					"'dead'" BLOCKING_REASON " ORDER BY p.key LIMIT $2",
					arg_int4(ep->id), arg_int8(max));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *key;
		OutboxLane *lane;

		outbox_read_row(i, into_text(&key));
		lane = outbox_lane_get(ep, outbox_lane_key(ep, key), true);
		if (lane)
			lane->dead = true;
	}
	if (!strict && SPI_processed == (uint64) max)
		ep->queue->lanes_all = false;
}

static void
load_strict(OutboxEndpoint *ep)
{
	OutboxLane *lane;
	Datum		key = CStringGetTextDatum("");

	if (outbox_lane_find(ep, "") == NULL)
		ask_keys(ep, &key, 1, false);
	lane = outbox_lane_find(ep, "");
	if (lane == NULL)
		return;
	if (!outbox_has_all_retries(ep))
		outbox_lane_forget_rows(lane);
	outbox_lane_parked(lane, PG_INT64_MIN);
	outbox_lane_advance(ep, lane);
}

static void
load_followers(OutboxEndpoint *ep)
{
	if (ep->queue->lanes_all)
		read_keys(ep, "", FIRST_KEYS);
	if (!ep->queue->lanes_all || SPI_processed == FIRST_KEYS)
	{
		outbox_lanes_forget_rows(ep);
		ep->table->sweep_key = MemoryContextStrdup(ep->cxt, "");
		return;
	}
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *key;
		int64		first;
		OutboxLane *lane;

		outbox_read_row(i, into_text(&key), into_int8(&first));
		lane = outbox_lane_get(ep, key, true);
		outbox_lane_parked(lane, first);
		outbox_lane_advance(ep, lane);
	}
}

static bool
has_rows(const OutboxEndpoint *ep)
{
	return outbox_plan_run("SELECT 1 FROM outbox.parked p" OF_ENDPOINT " LIMIT 1",
						   arg_int4(ep->id)) > 0;
}

void
outbox_parked_load(OutboxEndpoint *ep)
{
	ep->queue->met_at = GetCurrentTimestamp();
	if (!has_rows(ep))
	{
		/* As a rule.  A worker that starts asks this of each endpoint. */
		outbox_endpoint_nothing_parked(ep);
		return;
	}
	ep->queue->lanes_all = true;
	ep->queue->retries_due = DT_NOBEGIN;
	ep->queue->retries_seq = PG_INT64_MIN;
	outbox_parked_count_again(ep);
	outbox_plan_run("SELECT p.seq FROM outbox.parked p" OF_ENDPOINT STATUS "'cancelled'"
					" ORDER BY p.seq DESC LIMIT 1",
					arg_int4(ep->id));
	ep->feed->cancelled_upto = PG_INT64_MIN;
	if (SPI_processed > 0)
		outbox_read_row(0, into_int8(&ep->feed->cancelled_upto));

	if (ep->config.ordering != OUTBOX_ORDER_STRICT)
		outbox_parked_unblock(ep);
	read_retries(ep);
	if (ep->config.ordering == OUTBOX_ORDER_KEY)
		ep->queue->lanes_all = outbox_has_all_retries(ep);
	if (ep->config.block_on_dead && ep->config.ordering != OUTBOX_ORDER_NONE)
		load_dead(ep);
	if (ep->config.ordering == OUTBOX_ORDER_STRICT)
		load_strict(ep);

	/*
	 * Followers come after the heads, so that a lane knows whether it is blocked.
	 */
	if (ep->config.ordering == OUTBOX_ORDER_KEY)
		load_followers(ep);
	count_rows(ep);
}

bool
outbox_parked_wants_look(const OutboxEndpoint *ep)
{
	return wants_retries(ep) || !dlist_is_empty(&ep->queue->asking) || wants_window(ep) ||
		ep->table->sweep_key != NULL || !outbox_has_all_rows(ep);
}

/* Sets 'lanes_all' again if the table has nothing left that could block a key. */
static void
know_all(OutboxEndpoint *ep)
{
	if (!ep->queue->lanes_all && outbox_has_all_rows(ep) &&
		ep->table->sweep_key == NULL && ep->queue->nsettling == 0 &&
		ep->table->rows[OUTBOX_ROW_RETRYING] == 0 &&
		ep->table->rows[OUTBOX_ROW_BLOCKED] == 0 &&
		(!ep->config.block_on_dead || ep->table->rows[OUTBOX_ROW_DEAD] == 0))
		ep->queue->lanes_all = true;
}

bool
outbox_parked_look(OutboxEndpoint *ep, bool slices)
{
	outbox_lock_indexes(OUTBOX_TABLE_PARKED, OUTBOX_TABLE_PARKED);
	if (wants_retries(ep))
		read_retries(ep);
	ask_lanes(ep);
	if (wants_window(ep))
		ask_for_window(ep);
	if (slices && ep->table->sweep_key != NULL)
		sweep(ep);
	else if (slices && !outbox_has_all_rows(ep))
		count_rows(ep);
	else
		slices = false;
	know_all(ep);
	return slices;
}
