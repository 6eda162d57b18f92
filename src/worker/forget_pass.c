/*
 * forget_pass.c
 *	  Owns a pass of outbox.forget(): rows of the events that requests concern are
 *	  emptied, or removed, in slices.
 *
 * A pass is for many requests, so that many of them do not read the tables many times.  A
 * request is complete when a whole pass has found nothing of it.
 *
 * Whether a row is done can be seen from the row.  So after a crash, or an error, a pass
 * begins anew.  An event that is emptied keeps its row, its number and its id: positions
 * and views do not change.
 */
#include "base/outbox.h"

#include "base/query.h"
#include "log/forgotten.h"
#include "log/step.h"
#include "log/tick.h"
#include "server/wakeup.h"
#include "worker/forget_pass.h"

/* The limits of a slice: rows that are examined, and the time (µs) after which it ends. */
#define SLICE_ROWS 500
#define SLICE_TIME (10 * 1000)

/* Events that are emptied before the time is checked; more while that is quick. */
#define AT_ONCE 16

/*
 * The next pass waits for commands COMMANDS_REST times as long as this one took, a minute at
 * most.  One of them may fail again and again.
 */
#define COMMANDS_REST 60

typedef enum Stage
{
	STAGE_EVENTS,	 /* with their attempts and parked deliveries, by seq */
	STAGE_SCHEDULED, /* by id */
	STAGE_DEDUP,	 /* by key */
	STAGE_END
} Stage;

/* The rows that a slice has removed: columns of outbox.forgotten. */
typedef struct Removed
{
	int64 events;
	int64 attempts;
	int64 deliveries;
	int64 scheduled;
	int64 dedup_keys;
} Removed;

/* A request that the pass is for. */
typedef struct Request
{
	int64	id;
	bool	changed; /* true if another pass has to look for more */
	Removed removed; /* by the present slice */
} Request;

/* How far a pass is. */
typedef struct Pass
{
	int		  n; /* requests, by their ids (0: there is no pass) */
	Request	 *requests;
	Stage	  stage;
	char	  events_of[OUTBOX_MAX_TENANT + 1]; /* tenant of the events */
	int64	  seq;
	pg_uuid_t scheduled;
	char	  topic[OUTBOX_MAX_TOPIC + 1]; /* of the last key */
	char	  dedup_key[OUTBOX_MAX_DEDUP_KEY + 1];
	char	  tenant[OUTBOX_MAX_TENANT + 1];

	TimestampTz begun;
	TimestampTz waits_until; /* at its end, for commands (0: it has not ended) */
} Pass;

static Pass pass;

/* ---------------------------------------------- requests, and what they concern */

/* NULL: the pass is not for it. */
static Request *
request_of(const OutboxForget *f)
{
	return bsearch(&f->id, pass.requests, pass.n, sizeof(Request), outbox_compare_int8);
}

/*
 * The event is not forgotten yet.  Notes what every request has found that concerns it, and
 * returns the one that it is counted for (NULL: none concerns it).  'xid' 0: an event of
 * another log is not sent, and is nobody's new event.
 */
static Request *
request_for_event(const char *tenant, const char *key, uint64 xid)
{
	const OutboxForget *lists[] = {outbox_forgotten_of(tenant, NULL),
								   key ? outbox_forgotten_of(tenant, key) : NULL};
	Request			   *found = NULL;

	for (size_t i = 0; i < lengthof(lists); i++)
		for (const OutboxForget *f = lists[i]; f; f = f->next)
		{
			Request *r = request_of(f);

			if (r == NULL || (xid != 0 && !outbox_tick_sees(f->requested_at, xid)))
				continue;
			r->changed = true;
			if (found == NULL || r->id < found->id)
				found = r;
		}
	return found;
}

/*
 * Returns the first request that names the tenant, with a key or without.  'any': whether
 * it has one does not matter.  'changed': all of these have found something.
 */
static Request *
request_for_tenant(const char *tenant, bool with_key, bool any, bool changed)
{
	int					n;
	const OutboxForget *list = outbox_forgotten_list(&n);
	Request			   *found = NULL;

	for (int i = 0; i < n; i++)
	{
		Request *r;

		if ((!any && (list[i].key != NULL) != with_key) ||
			strcmp(list[i].tenant, tenant) != 0 || (r = request_of(&list[i])) == NULL)
			continue;
		r->changed = r->changed || changed;
		if (found == NULL)
			found = r;
	}
	return found;
}

/* ---------------------------------------------------------------- events */

typedef struct EventRow
{
	int64	 seq;
	int64	 epoch;
	Request *request; /* NULL: it was emptied before, and its key is gone */
} EventRow;

typedef struct EventRows
{
	int		  n;
	EventRow *rows; /* by seq */
	int		  nfull;
	int64	 *full_seqs; /* that are to be emptied */
	int64	 *full_epochs;
} EventRows;

/*
 * A row is found by its number.  In this form the index of tenants, which PostgreSQL may
 * take without statistics, does not serve.
 */
#define OF_TENANT " (e.tenant = $1) IS TRUE"

/* Reads which of these rows are to be emptied, or were. */
static EventRows
judge_events(const char *tenant, const int64 *seqs, int n)
{
	EventRows found = {0};
	uint64	  nrows = outbox_plan_run(
		   "SELECT e.seq, e.epoch, outbox.log_xid(e.epoch, e.xid), e.key, e.emptied, e.counts"
			  " FROM (SELECT l.seq, l.epoch, l.xid, l.key, l.tenant,"
			  " l.payload IS NULL AND l.body IS NULL AS emptied, true AS counts"
			  " FROM outbox.events l UNION ALL"
			  " SELECT k.seq, k.epoch, k.xid, k.key, k.tenant,"
			  " k.payload IS NULL AND k.body IS NULL, NOT EXISTS"
			  " (SELECT 1 FROM outbox.events l WHERE l.seq = k.seq AND l.epoch = k.epoch)"
			  " FROM outbox.kept_events k) e"
			  " WHERE e.seq = ANY ($2) AND" OF_TENANT " ORDER BY e.seq",
		   arg_text(tenant), arg_int8s(seqs, n));

	found.rows = palloc(sizeof(EventRow) * Max(nrows, 1));
	found.full_seqs = palloc(sizeof(int64) * Max(nrows, 1));
	found.full_epochs = palloc(sizeof(int64) * Max(nrows, 1));
	for (uint64 i = 0; i < nrows; i++)
	{
		EventRow row = {0};
		uint64	 xid;
		char	*key;
		bool	 emptied, counts;

		outbox_read_row(i, into_int8(&row.seq), into_int8(&row.epoch), into_xid8(&xid),
						into_text(&key), into_bool(&emptied), into_bool(&counts));
		if (!emptied)
		{
			row.request = request_for_event(tenant, key, xid);
			if (row.request == NULL)
				continue;
			row.request->removed.events += counts;
			found.full_seqs[found.nfull] = row.seq;
			found.full_epochs[found.nfull++] = row.epoch;
		}
		if (xid != 0)
			found.rows[found.n++] = row;
	}
	return found;
}

/*
 * The last statement returned numbers of events, and how many rows that belong to each it
 * has changed (0: they wait for commands).  Adds them to a column of the requests, and returns
 * their sum.
 */
static int64
count_by_event(const char *tenant, const EventRows *events, size_t column)
{
	int64 sum = 0;

	for (uint64 i = 0; i < SPI_processed; i++)
	{
		int64	  seq, n;
		EventRow *row;
		Request	 *r;

		outbox_read_row(i, into_int8(&seq), into_int8(&n));
		row = bsearch(&seq, events->rows, events->n, sizeof(EventRow),
					  outbox_compare_int8);
		r = row ? row->request : NULL;
		if (r == NULL)
			r = request_for_tenant(tenant, false, true, true);
		if (r)
			*(int64 *) ((char *) &r->removed + column) += n;
		sum += n;
	}
	return sum;
}

/* Another log may have a row of the same number. */
#define EMPTY \
	" SET key = NULL, headers = NULL, payload = NULL, body = NULL, content_type = NULL" \
	" FROM unnest($2, $3) u (seq, epoch)" \
	" WHERE e.seq = ANY ($2) AND e.seq = u.seq AND e.epoch = u.epoch AND" OF_TENANT \
	" AND (e.payload IS NOT NULL OR e.body IS NOT NULL)"

/* Empties these events, in the log and beside it, and asks for their deliveries. */
static void
empty_events(const char *tenant, const int64 *seqs, int n)
{
	EventRows events = judge_events(tenant, seqs, n);
	int64	 *all = palloc(sizeof(int64) * Max(events.n, 1));

	for (int i = 0; i < events.n; i++)
		all[i] = events.rows[i].seq;
	if (events.nfull > 0)
	{
		OutboxArg full_seqs = arg_int8s(events.full_seqs, events.nfull);
		OutboxArg full_epochs = arg_int8s(events.full_epochs, events.nfull);

		outbox_plan_run("UPDATE outbox.events e" EMPTY, arg_text(tenant), full_seqs,
						full_epochs);
		outbox_plan_run("UPDATE outbox.kept_events e" EMPTY, arg_text(tenant), full_seqs,
						full_epochs);
	}
	if (events.n == 0)
		return;
	outbox_plan_run("WITH a AS (UPDATE outbox.attempt_log a SET response_body = NULL,"
					" response_headers = NULL,"
					" error = CASE WHEN a.error IS NOT NULL THEN 'forgotten' END"
					" WHERE a.seq = ANY ($1)"
					" AND (a.response_body IS NOT NULL OR a.response_headers IS NOT NULL"
					" OR a.error <> 'forgotten') RETURNING a.seq)"
					" SELECT a.seq, pg_catalog.count(*) FROM a GROUP BY a.seq",
					arg_int8s(all, events.n));
	count_by_event(tenant, &events, offsetof(Removed, attempts));

	/*
	 * A delivery whose command waits gets no other one.  Behind "||" the index of all commands
	 * to forget, which PostgreSQL may take without statistics, does not serve.
	 */
	outbox_plan_run("WITH d AS (SELECT k.endpoint_id, k.seq, (SELECT c.seq"
					" FROM outbox.commands c WHERE c.seq = k.seq"
					" AND c.endpoint_id = k.endpoint_id"
					" AND c.action || '' = 'forget' LIMIT 1) IS NULL AS new"
					" FROM outbox.parked k"
					" JOIN outbox.endpoint_settings s USING (endpoint_id)"
					" WHERE k.seq = ANY ($1)"
					" AND (k.status <> 'cancelled' OR k.key IS NOT NULL"
					" OR k.last_error IS NOT NULL)),"
					" c AS (INSERT INTO outbox.commands (endpoint_id, action, seq)"
					" SELECT d.endpoint_id, 'forget', d.seq FROM d WHERE d.new"
					" ORDER BY d.seq)"
					" SELECT d.seq, pg_catalog.count(*) FILTER (WHERE d.new)"
					" FROM d GROUP BY d.seq",
					arg_int8s(all, events.n));
	if (count_by_event(tenant, &events, offsetof(Removed, deliveries)) > 0)
		outbox_mark(OUTBOX_MARK_CHANGED); /* the workers of these endpoints are woken */
}

/* Goes on to the next tenant of the pass, in their order.  False: there are no more. */
static bool
next_tenant(void)
{
	int					n;
	const OutboxForget *list = outbox_forgotten_list(&n);
	const char		   *next = NULL;

	for (int i = 0; i < n; i++)
		if (request_of(&list[i]) && strcmp(list[i].tenant, pass.events_of) > 0 &&
			(next == NULL || strcmp(list[i].tenant, next) < 0))
			next = list[i].tenant;
	if (next == NULL)
		return false;
	strlcpy(pass.events_of, next, sizeof(pass.events_of));
	pass.seq = 0;
	return true;
}

/* No event that a request of the pass concerns has a higher number. */
static int64
last_of_tenant(void)
{
	int					n;
	const OutboxForget *list = outbox_forgotten_list(&n);
	int64				upto = 0;

	for (int i = 0; i < n; i++)
		if (strcmp(list[i].tenant, pass.events_of) == 0 && request_of(&list[i]))
			upto = Max(upto, list[i].upto);
	return upto;
}

/* True if there are no more. */
static bool
slice_of_events(void)
{
	static int	at_once = AT_ONCE;
	TimestampTz begun = GetCurrentTimestamp();
	int64		seqs[SLICE_ROWS];
	int			n;
	int			m;

	if (pass.events_of[0] == '\0' && !next_tenant())
		return true;
	outbox_plan_run("SELECT q.seq FROM ((SELECT e.seq FROM outbox.events e"
					" WHERE e.tenant = $1 AND e.seq > $2"
					" ORDER BY e.seq LIMIT " CppAsString2(
						SLICE_ROWS) ") UNION"
									" (SELECT e.seq FROM outbox.kept_events e"
									" WHERE e.tenant = $1 AND e.seq > $2"
									" ORDER BY e.seq LIMIT " CppAsString2(
										SLICE_ROWS) ")) q"
													" ORDER BY q.seq LIMIT " CppAsString2(
														SLICE_ROWS),
					arg_text(pass.events_of), arg_int8(pass.seq));
	n = (int) SPI_processed;
	for (int i = 0; i < n; i++)
		outbox_read_row(i, into_int8(&seqs[i]));
	for (int i = 0; i < n; i += m)
	{
		TimestampTz from = GetCurrentTimestamp();

		if (i > 0 && from - begun >= SLICE_TIME)
			return false;
		m = Min(at_once, n - i);
		empty_events(pass.events_of, &seqs[i], m);
		pass.seq = seqs[i + m - 1];
		if (GetCurrentTimestamp() - from < SLICE_TIME / 4)
			at_once = Min(at_once * 2, SLICE_ROWS);
		else
			at_once = AT_ONCE;
	}
	return (n < SLICE_ROWS || pass.seq >= last_of_tenant()) && !next_tenant();
}

/* ------------------------------------------------------ beside the log */

/*
 * Removes scheduled events with their deduplication keys.  A row that another transaction
 * has locked, to cancel it, is left for the next pass.
 */
static bool
slice_of_scheduled(void)
{
	uint64 found =
		outbox_plan_run("SELECT e.id, e.tenant, e.key, outbox.log_xid(e.epoch, e.xid)"
						" FROM outbox.scheduled e WHERE e.id > $1"
						" ORDER BY e.id LIMIT " CppAsString2(SLICE_ROWS),
						arg_datum(UUIDOID, UUIDPGetDatum(&pass.scheduled)));
	Datum	 due[SLICE_ROWS];
	Request *requests[SLICE_ROWS];
	int		 ndue = 0;
	uint64	 n;

	for (uint64 i = 0; i < found; i++)
	{
		pg_uuid_t *id = palloc(sizeof(pg_uuid_t));
		char	  *tenant, *key;
		uint64	   xid;

		outbox_read_row(i, into_uuid(id), into_text(&tenant), into_text(&key),
						into_xid8(&xid));
		pass.scheduled = *id;
		requests[ndue] = tenant ? request_for_event(tenant, key, xid) : NULL;
		if (requests[ndue])
			due[ndue++] = UUIDPGetDatum(id);
	}
	if (ndue == 0)
		return found < SLICE_ROWS;
	n = outbox_plan_run(
		"WITH due AS MATERIALIZED (SELECT e.id, e.topic, e.dedup_key, e.tenant"
		" FROM outbox.scheduled e WHERE e.id = ANY ($1)),"
		" keys AS MATERIALIZED (SELECT k.topic, k.dedup_key, k.tenant, k.event_id"
		" FROM outbox.dedup k JOIN due d ON k.topic = d.topic"
		" AND k.dedup_key = d.dedup_key AND k.tenant = d.tenant"
		" AND k.event_id = d.id FOR UPDATE OF k SKIP LOCKED),"
		" free AS MATERIALIZED (SELECT s.id FROM outbox.scheduled s WHERE"
		" s.id = ANY (ARRAY(SELECT d.id FROM due d"
		" WHERE EXISTS (SELECT 1 FROM keys k WHERE k.event_id = d.id)"
		" OR (SELECT true FROM outbox.dedup k WHERE k.topic = d.topic"
		" AND k.dedup_key = d.dedup_key AND k.tenant = d.tenant"
		" AND k.event_id = d.id LIMIT 1) IS NULL))" /* no hash of all keys is made */
		" FOR UPDATE SKIP LOCKED),"
		" unique_again AS (DELETE FROM outbox.dedup k USING keys d"
		" WHERE k.topic = d.topic AND k.dedup_key = d.dedup_key"
		" AND k.tenant = d.tenant"
		" AND k.event_id IN (SELECT f.id FROM free f) RETURNING k.event_id),"
		" gone AS (DELETE FROM outbox.scheduled s USING free d"
		" WHERE s.id = d.id RETURNING s.id)"
		" SELECT u.n, EXISTS (SELECT 1 FROM unique_again k WHERE k.event_id = u.id)"
		" FROM pg_catalog.unnest($1) WITH ORDINALITY u (id, n)"
		" JOIN gone g ON g.id = u.id",
		arg_datum(UUIDARRAYOID, outbox_array(due, ndue, UUIDOID)));
	for (uint64 i = 0; i < n; i++)
	{
		int64 number;
		bool  unique;

		outbox_read_row(i, into_int8(&number), into_bool(&unique));
		requests[number - 1]->removed.scheduled++;
		requests[number - 1]->removed.dedup_keys += unique;
	}
	return found < SLICE_ROWS;
}

/*
 * Removes deduplication keys.  A key whose event is there, and not forgotten, is that of
 * a new event.  A key whose event is gone is new if it was claimed later.  Where the
 * events of one key are forgotten, it stays: nothing says whose it is.  The pass has
 * emptied its events before.  So what is left here is only what others have locked.
 */
static bool
slice_of_dedup(void)
{
	int64  found;
	char  *topic, *key, *last;
	uint64 n = outbox_plan_run(
		"WITH slice AS MATERIALIZED (SELECT d.* FROM outbox.dedup d"
		" WHERE ROW(d.topic, d.dedup_key, d.tenant) > ROW($1, $2, $3)"
		" ORDER BY d.topic, d.dedup_key, d.tenant LIMIT " CppAsString2(
			SLICE_ROWS) "),"
						" asked AS MATERIALIZED (SELECT f.tenant, f.key IS NOT NULL AS with_key,"
						" pg_catalog.max(f.requested_at) AS at FROM outbox.forgotten f"
						" WHERE f.complete_at IS NULL AND f.forget_id <= $4 GROUP BY 1, 2),"
						" due AS MATERIALIZED (SELECT DISTINCT ON (d.topic, d.dedup_key, d.tenant)"
						" d.topic, d.dedup_key, d.tenant, d.event_id, a.with_key"
						" FROM slice d JOIN asked a ON a.tenant = d.tenant AND d.created_at <= a.at"
						" WHERE CASE WHEN a.with_key THEN EXISTS (SELECT 1 FROM outbox.all_events e"
						" WHERE e.id = d.event_id AND e.payload IS NULL AND e.body IS NULL)"
						" ELSE NOT EXISTS (SELECT 1 FROM outbox.all_events e"
						" WHERE e.id = d.event_id"
						" AND (e.payload IS NOT NULL OR e.body IS NOT NULL))"
						" AND NOT EXISTS (SELECT 1 FROM outbox.scheduled s"
						" WHERE s.id = d.event_id) END),"
						" free AS MATERIALIZED (SELECT k.topic, k.dedup_key, k.tenant"
						" FROM outbox.dedup k JOIN due d ON k.topic = d.topic"
						" AND k.dedup_key = d.dedup_key AND k.tenant = d.tenant"
						" AND k.event_id = d.event_id"
						" FOR UPDATE OF k SKIP LOCKED),"
						" gone AS (DELETE FROM outbox.dedup k USING free d"
						" WHERE k.topic = d.topic AND k.dedup_key = d.dedup_key"
						" AND k.tenant = d.tenant RETURNING k.topic, k.dedup_key, k.tenant)"
						" SELECT (SELECT pg_catalog.count(*) FROM slice),"
						" l.topic, l.dedup_key, l.tenant, q.tenant, q.with_key, q.due, q.gone"
						" FROM (SELECT) one LEFT JOIN LATERAL"
						" (SELECT s.topic, s.dedup_key, s.tenant FROM slice s"
						" ORDER BY s.topic DESC, s.dedup_key DESC, s.tenant DESC"
						" LIMIT 1) l ON true LEFT JOIN LATERAL"
						" (SELECT d.tenant, d.with_key, pg_catalog.count(*) AS due,"
						" pg_catalog.count(g.tenant) AS gone FROM due d"
						" LEFT JOIN gone g USING (topic, dedup_key, tenant)"
						" GROUP BY d.tenant, d.with_key) q ON true",
		arg_text(pass.topic), arg_text(pass.dedup_key), arg_text(pass.tenant),
		arg_int8(pass.requests[pass.n - 1].id));

	for (uint64 i = 0; i < n; i++)
	{
		char	*tenant;
		bool	 with_key;
		int64	 due, gone;
		Request *r;

		outbox_read_row(i, into_int8(&found), into_text(&topic), into_text(&key),
						into_text(&last), into_text(&tenant), into_bool(&with_key),
						into_int8(&due), into_int8(&gone));
		r = tenant ? request_for_tenant(tenant, with_key, false, due > gone) : NULL;
		if (r)
			r->removed.dedup_keys += gone;
	}
	if (found < SLICE_ROWS)
		return true;
	strlcpy(pass.topic, topic, sizeof(pass.topic));
	strlcpy(pass.dedup_key, key, sizeof(pass.dedup_key));
	strlcpy(pass.tenant, last, sizeof(pass.tenant));
	return false;
}

/* ---------------------------------------------------------------- passes */

static bool
commands_wait(void)
{
	return outbox_query("SELECT 1 FROM outbox.commands"
						" WHERE action = 'forget' LIMIT 1") > 0;
}

static void
count(void)
{
	for (int i = 0; i < pass.n; i++)
	{
		const Removed *r = &pass.requests[i].removed;

		if (r->events + r->attempts + r->deliveries + r->scheduled + r->dedup_keys > 0)
			outbox_plan_run("UPDATE outbox.forgotten SET events = events + $2,"
							" attempts = attempts + $3,"
							" deliveries = deliveries + $4,"
							" scheduled = scheduled + $5,"
							" dedup_keys = dedup_keys + $6"
							" WHERE forget_id = $1",
							arg_int8(pass.requests[i].id), arg_int8(r->events),
							arg_int8(r->attempts), arg_int8(r->deliveries),
							arg_int8(r->scheduled), arg_int8(r->dedup_keys));
	}
}

/*
 * Completes the requests of which the pass has found nothing.  The workers read the list
 * again, in which they are no more.  The servers that this one follows still need the key
 * (outbox.forget_at_sources()).
 */
static void
complete(void)
{
	int64 *ids = palloc(sizeof(int64) * pass.n);
	int	   n = 0;

	for (int i = 0; i < pass.n; i++)
		if (!pass.requests[i].changed)
			ids[n++] = pass.requests[i].id;
	if (n == 0)
		return;
	outbox_query(
		"WITH c AS MATERIALIZED (SELECT c.relation, c.file FROM outbox.content_files c)"
		" UPDATE outbox.forgotten SET complete_at = pg_catalog.clock_timestamp(),"
		" key = CASE WHEN sources <> '{}' THEN key"
		" WHEN key IS NOT NULL THEN 'forgotten' END,"
		" files = (SELECT pg_catalog.jsonb_object_agg(c.relation, c.file)"
		" FROM c WHERE key IS NOT NULL OR c.relation <> 'forgotten')"
		" WHERE forget_id = ANY ($1) AND complete_at IS NULL",
		arg_int8s(ids, n));
	outbox_mark(OUTBOX_MARK_CHANGED);
}

/* For all requests of the list up to this one.  There is one at least. */
static void
begin_pass(int64 upto)
{
	static MemoryContext cxt;
	int					 n;
	const OutboxForget	*list = outbox_forgotten_list(&n);

	if (cxt == NULL)
		cxt = AllocSetContextCreate(TopMemoryContext, "outbox forget pass",
									ALLOCSET_SMALL_SIZES);
	MemoryContextReset(cxt);
	memset(&pass, 0, sizeof(pass));
	pass.requests = MemoryContextAllocZero(cxt, sizeof(Request) * n);
	for (int i = 0; i < n && list[i].id <= upto; i++)
		pass.requests[pass.n++].id = list[i].id;
	pass.begun = GetCurrentTimestamp();
}

bool
outbox_forget_pass_slice(int64 upto)
{
	if (pass.n == 0)
		begin_pass(upto);
	for (int i = 0; i < pass.n; i++)
		memset(&pass.requests[i].removed, 0, sizeof(Removed));
	switch (pass.stage)
	{
		case STAGE_EVENTS:
			pass.stage += slice_of_events();
			break;
		case STAGE_SCHEDULED:
			pass.stage += slice_of_scheduled();
			break;
		case STAGE_DEDUP:
			pass.stage += slice_of_dedup();
			break;
		case STAGE_END:
			if (pass.waits_until == 0)
			{
				complete();
				pass.waits_until = outbox_step_rest(pass.begun, COMMANDS_REST);
			}
			if (GetCurrentTimestamp() >= pass.waits_until || !commands_wait())
				pass.n = 0;
			return false;
	}
	count();
	return true;
}

void
outbox_forget_pass_drop(void)
{
	pass.n = 0;
}
