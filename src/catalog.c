/*
 * catalog.c
 *	  Reads what the extension's tables say about endpoints: settings, stored
 *	  positions, parked deliveries.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "lane.h"
#include "plan.h"
#include "retries.h"
#include "session.h"

/* The columns of the current row, by name-free position. */
typedef struct Row
{
	Datum	   *values;
	bool	   *nulls;
} Row;

static Row
fetch_row(uint64 i)
{
	int			n = SPI_tuptable->tupdesc->natts;
	Row			row = {palloc(sizeof(Datum) * n), palloc(sizeof(bool) * n)};

	heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
					  row.values, row.nulls);
	return row;
}

static char *
row_text(Row row, int i)
{
	return row.nulls[i] ? NULL : TextDatumGetCString(row.values[i]);
}

static int64
row_int8(Row row, int i)
{
	return row.nulls[i] ? 0 : DatumGetInt64(row.values[i]);
}

static int32
row_int4(Row row, int i)
{
	return row.nulls[i] ? 0 : DatumGetInt32(row.values[i]);
}

static TimestampTz
row_time(Row row, int i, TimestampTz otherwise)
{
	return row.nulls[i] ? otherwise : DatumGetTimestampTz(row.values[i]);
}

static bool
row_is(Row row, int i, const char *what)
{
	return !row.nulls[i] && strcmp(TextDatumGetCString(row.values[i]), what) == 0;
}

/* ------------------------------------------------------------- settings */

static void
read_patterns(Datum array, OutboxSettings *s)
{
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT,
					  &elems, &nulls, &n);
	s->patterns = palloc(sizeof(char *) * Max(n, 1));
	s->npatterns = 0;
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			s->patterns[s->npatterns++] = TextDatumGetCString(elems[i]);
}

static char *
jsonb_string(const JsonbValue *v)
{
	return pnstrdup(v->val.string.val, v->val.string.len);
}

static void
read_headers(Jsonb *jb, OutboxSettings *s)
{
	JsonbIterator *it = JsonbIteratorInit(&jb->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	int			n = JB_ROOT_COUNT(jb);

	s->header_names = palloc(sizeof(char *) * Max(n, 1));
	s->header_values = palloc(sizeof(char *) * Max(n, 1));
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			s->header_names[s->nheaders] = jsonb_string(&v);
		else if (token == WJB_VALUE && v.type == jbvString)
			s->header_values[s->nheaders++] = jsonb_string(&v);
	}
}

static OutboxFormat
read_format(const char *name)
{
	if (strcmp(name, "raw") == 0)
		return OUTBOX_FORMAT_RAW;
	if (strcmp(name, "cloudevents") == 0)
		return OUTBOX_FORMAT_CLOUDEVENTS;
	if (strcmp(name, "cloudevents-binary") == 0)
		return OUTBOX_FORMAT_CLOUDEVENTS_BINARY;
	return OUTBOX_FORMAT_STANDARD;
}

static OutboxOrdering
read_ordering(const char *name)
{
	if (strcmp(name, "none") == 0)
		return OUTBOX_ORDER_NONE;
	if (strcmp(name, "strict") == 0)
		return OUTBOX_ORDER_STRICT;
	return OUTBOX_ORDER_KEY;
}

#define USEC(column) \
	"(pg_catalog.date_part('epoch', s." column ") OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"

/*
 * What is no longer used to sign is no longer kept either.  A row that somebody
 * is rotating again just now is theirs: nothing is waited for.
 */
static void
forget_previous_secrets(void)
{
	outbox_query("UPDATE outbox.endpoint_secrets SET previous = NULL, previous_until = NULL"
		  " WHERE endpoint_id OPERATOR(pg_catalog.=) ANY (ARRAY("
		  "SELECT k.endpoint_id FROM outbox.endpoint_secrets k"
		  " WHERE k.previous_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"
		  " FOR UPDATE SKIP LOCKED))",
		  0, NULL, NULL, NULL);
}

void
outbox_catalog_settings(OutboxApplySettings apply, void *arg)
{
	SPITupleTable *table;
	uint64		n;
	bool		expired = false;

	outbox_query("SELECT s.endpoint_id, s.name, s.url, s.topics, s.format, s.headers,"
		  " s.ordering, s.on_exhausted, s.max_in_flight,"
		  " s.rate_limit::pg_catalog.float8, " USEC("timeout") ", "
		  USEC("connect_timeout") ", s.max_attempts, " USEC("max_age") ", "
		  USEC("backoff_base") ", " USEC("backoff_max") ","
		  " s.state, s.state_since, s.reason, s.version, s.generation,"
		  " s.start_snapshot::pg_catalog.text, s.start_seq_low,"
		  " k.secret, k.previous, k.previous_until, s.filter, s.xmin, k.xmin,"
		  " s.batch_size, " USEC("batch_wait")
		  " FROM outbox.endpoint_settings s LEFT JOIN outbox.endpoint_secrets k"
		  " ON k.endpoint_id OPERATOR(pg_catalog.=) s.endpoint_id"
		  " ORDER BY s.endpoint_id",
		  0, NULL, NULL, NULL);

	/* What apply() asks replaces the rows that are at hand. */
	table = SPI_tuptable;
	n = SPI_processed;
	for (uint64 i = 0; i < n; i++)
	{
		Row			row;
		OutboxSettings s = {0};

		SPI_tuptable = table;
		row = fetch_row(i);
		s.id = row_int4(row, 0);
		s.name = row_text(row, 1);
		s.url = row_text(row, 2);
		read_patterns(row.values[3], &s);
		s.format = read_format(row_text(row, 4));
		if (!row.nulls[5])
			read_headers(DatumGetJsonbP(row.values[5]), &s);
		s.ordering = read_ordering(row_text(row, 6));
		s.block_on_dead = row_is(row, 7, "block");
		s.max_in_flight = row_int4(row, 8);
		s.rate_limit = row.nulls[9] ? 0 : DatumGetFloat8(row.values[9]);
		s.timeout = row_int8(row, 10);
		s.connect_timeout = row_int8(row, 11);
		s.max_attempts = row_int4(row, 12);
		s.max_age = row_int8(row, 13);
		s.backoff_base = row_int8(row, 14);
		s.backoff_max = row_int8(row, 15);
		s.paused = row_is(row, 16, "paused");
		s.disabled = row_is(row, 16, "disabled");
		s.state_since = row_time(row, 17, 0);
		s.reason = row_text(row, 18);
		s.version = row_int8(row, 19);
		s.generation = row_int8(row, 20);
		s.start = outbox_tick_make(0, s.state_since, row_int8(row, 22),
								   row_int8(row, 22), row_text(row, 21));
		s.secret = row_text(row, 23);
		s.previous_until = row_time(row, 25, DT_NOEND);
		if (s.previous_until > GetCurrentTimestamp())
			s.previous = row_text(row, 24);
		else
			expired = true;
		if (s.previous == NULL)
			s.previous_until = DT_NOEND;
		s.row_version = (uint64) DatumGetTransactionId(row.values[27]) << 32 |
			(row.nulls[28] ? 0 : DatumGetTransactionId(row.values[28]));
		s.batch_size = row_int4(row, 29);
		s.batch_wait = row_int8(row, 30);
		s.filter = row.nulls[26] ? NULL : DatumGetJsonPathP(row.values[26]);
		apply(arg, &s);
		outbox_tick_unref(s.start);
	}
	if (expired)
		forget_previous_secrets();
}

static char **
copy_strings(char **from, int n)
{
	char	  **to = palloc(sizeof(char *) * Max(n, 1));

	for (int i = 0; i < n; i++)
		to[i] = pstrdup(from[i]);
	return to;
}

/*
 * Requests in flight still use the former URL, so its memory is only retired
 * here; the worker frees it when none is left.
 */
void
outbox_catalog_assign(OutboxEndpoint *ep, const OutboxSettings *s)
{
	MemoryContext cxt = AllocSetContextCreate(CurTransactionContext,
											  "outbox endpoint settings",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);

	ep->name = pstrdup(s->name);
	ep->npatterns = s->npatterns;
	ep->patterns = copy_strings(s->patterns, s->npatterns);
	ep->row_version = s->row_version;
	ep->filter = NULL;
	if (s->filter)
	{
		ep->filter = palloc(VARSIZE(s->filter));
		memcpy(ep->filter, s->filter, VARSIZE(s->filter));
	}
	ep->target.url = pstrdup(s->url);
	ep->target.connect_timeout = (int) Min(s->connect_timeout / 1000, PG_INT32_MAX);
	ep->target.timeout = (int) Min(s->timeout / 1000, PG_INT32_MAX);
	ep->target.whole_answer = s->batch_size > 1;
	ep->request.format = s->format;
	ep->request.nheaders = s->nheaders;
	ep->request.header_names = copy_strings(s->header_names, s->nheaders);
	ep->request.header_values = copy_strings(s->header_values, s->nheaders);
	ep->request.nkeys = 0;
	if (s->secret && outbox_secret_decode(s->secret, &ep->request.keys[0]))
	{
		ep->request.nkeys = 1;
		if (s->previous && outbox_secret_decode(s->previous, &ep->request.keys[1]))
			ep->request.nkeys = 2;
	}
	ep->secret_missing = ep->request.nkeys == 0;
	ep->previous_until = s->previous_until;
	ep->ordering = s->ordering;
	ep->block_on_dead = s->block_on_dead;
	ep->max_in_flight = s->max_in_flight;
	if (ep->slots == 0 ||
		(ep->breaker == OUTBOX_BREAKER_CLOSED && ep->ramp_at == 0))
		ep->slots = s->max_in_flight;
	ep->rate_limit = s->rate_limit;
	ep->max_attempts = s->max_attempts;
	ep->max_age = s->max_age;
	ep->backoff_base = s->backoff_base;
	ep->backoff_max = s->backoff_max;
	ep->batch_size = s->batch_size;
	ep->batch_wait = s->batch_wait;
	if (ep->disabled && !s->disabled)
		ep->retry_at = 0;		/* resumed: no backoff from before counts */
	ep->paused = s->paused;

	/* What the receiver asked for may not be in the table yet. */
	if (!ep->state_dirty)
	{
		ep->disabled = s->disabled;
		if (ep->breaker == OUTBOX_BREAKER_CLOSED)
			ep->state_since = s->state_since;
		strlcpy(ep->reason, s->reason ? s->reason : "", sizeof(ep->reason));
	}
	ep->version = s->version;

	if (ep->settings_cxt)
	{
		if (ep->retired_cxt == NULL)
			ep->retired_cxt = AllocSetContextCreate(ep->cxt, "outbox retired settings",
													ALLOCSET_SMALL_SIZES);
		MemoryContextSetParent(ep->settings_cxt, ep->retired_cxt);
	}
	MemoryContextSetParent(cxt, ep->cxt);
	ep->settings_cxt = cxt;
	MemoryContextSwitchTo(old);
}

/* ------------------------------------------------------------ positions */

#define CURSOR_COLUMNS \
	"done_tick, done::pg_catalog.text, done_seq_low, under_tick," \
	" under::pg_catalog.text, under_seq_low, under_seq_high, last_seq, settled_at"
#define NCURSOR_COLUMNS 9

/* From the columns above, which begin with the given one. */
static void
read_cursor(Row row, int i, OutboxCursor *cursor)
{
	TimestampTz at = row_time(row, i + 8, 0);
	OutboxTick *done = outbox_tick_make(row_int8(row, i), at, row_int8(row, i + 2),
										row_int8(row, i + 2), row_text(row, i + 1));
	OutboxTick *under = NULL;

	if (!row.nulls[i + 3])
		under = outbox_tick_make(row_int8(row, i + 3), at, row_int8(row, i + 5),
								 row_int8(row, i + 6), row_text(row, i + 4));
	outbox_cursor_set(cursor, done, under, row_int8(row, i + 7));
	outbox_tick_unref(done);
	outbox_tick_unref(under);
}

bool
outbox_catalog_position(int32 endpoint_id, OutboxPosition *p)
{
	Datum		args[1] = {Int32GetDatum(endpoint_id)};
	static SPIPlanPtr plan;
	static SPIPlanPtr shared_plan;
	Row			row;

	memset(p, 0, sizeof(*p));
	if (outbox_plan_run(&plan,
						"SELECT " CURSOR_COLUMNS ", generation, shared, pending,"
						" delivered, failed_attempts FROM outbox.positions"
						" WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
						" ORDER BY number DESC LIMIT 1",
						1, (Oid[]) {INT4OID}, args, NULL) == 0)
		return false;

	row = fetch_row(0);
	p->generation = row_int8(row, NCURSOR_COLUMNS);
	if (!row.nulls[NCURSOR_COLUMNS + 2])
	{
		Datum	   *elems;

		deconstruct_array(DatumGetArrayTypeP(row.values[NCURSOR_COLUMNS + 2]),
						  INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &elems,
						  NULL, &p->npending);
		p->pending = palloc(sizeof(int64) * Max(p->npending, 1));
		for (int i = 0; i < p->npending; i++)
			p->pending[i] = DatumGetInt64(elems[i]);
	}
	p->delivered = row_int8(row, NCURSOR_COLUMNS + 3);
	p->failed_attempts = row_int8(row, NCURSOR_COLUMNS + 4);
	if (!row.nulls[NCURSOR_COLUMNS + 1])
	{
		args[0] = row.values[NCURSOR_COLUMNS + 1];
		if (outbox_plan_run(&shared_plan,
							"SELECT " CURSOR_COLUMNS " FROM outbox.positions"
							" WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
							" ORDER BY number DESC LIMIT 1",
							1, (Oid[]) {INT4OID}, args, NULL) == 0)
			elog(ERROR, "shared position %d is missing", DatumGetInt32(args[0]));
		row = fetch_row(0);
	}
	read_cursor(row, 0, &p->cursor);
	return true;
}

bool
outbox_catalog_newest_shared(OutboxCursor *cursor)
{
	if (outbox_query("SELECT " CURSOR_COLUMNS " FROM outbox.positions"
					 " WHERE endpoint_id OPERATOR(pg_catalog.<) 0"
					 " AND number OPERATOR(pg_catalog.=) (SELECT pg_catalog.max(number)"
					 " FROM outbox.positions WHERE endpoint_id OPERATOR(pg_catalog.<) 0)",
					 0, NULL, NULL, NULL) == 0)
		return false;
	read_cursor(fetch_row(0), 0, cursor);
	return true;
}

void
outbox_catalog_positions_in_use(OutboxDatabase *db)
{
	Row			row;

	outbox_query("SELECT (SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1),"
		  " (SELECT pg_catalog.count(*) FROM outbox.positions)",
		  0, NULL, NULL, NULL);
	row = fetch_row(0);
	pg_atomic_write_u32(&db->positions_piece,
						row.nulls[0] ? 0 : DatumGetInt16(row.values[0]));
	pg_atomic_write_u32(&db->position_rows, (uint32) row_int8(row, 1));
}

void
outbox_catalog_raise_numbers(OutboxDatabase *db)
{
	Row			row;

	outbox_query("SELECT GREATEST("
		  "(SELECT pg_catalog.max(GREATEST(done_tick, under_tick)) FROM outbox.positions),"
		  "(SELECT pg_catalog.max(tick) FROM outbox.ticks)),"
		  " (SELECT pg_catalog.max(number) FROM outbox.positions),"
		  " (SELECT -pg_catalog.min(endpoint_id)::pg_catalog.int8 FROM outbox.positions"
		  " WHERE endpoint_id OPERATOR(pg_catalog.<) 0)",
		  0, NULL, NULL, NULL);
	row = fetch_row(0);
	outbox_raise(&db->last_tick, (uint64) row_int8(row, 0));
	outbox_raise(&db->last_position, (uint64) row_int8(row, 1));
	outbox_raise(&db->last_shared, (uint64) row_int8(row, 2));
}

int64
outbox_catalog_subscription(int32 endpoint_id)
{
	Datum		args[1] = {Int32GetDatum(endpoint_id)};

	outbox_query("SELECT pg_catalog.max(version) FROM outbox.subscriptions"
		  " WHERE endpoint_id OPERATOR(pg_catalog.=) $1",
		  1, (Oid[]) {INT4OID}, args, NULL);
	return row_int8(fetch_row(0), 0);
}

/* --------------------------------------------------------------- parked */

static void
unblock(OutboxEndpoint *ep)
{
	Datum		args[2] = {Int32GetDatum(ep->id), BoolGetDatum(ep->ordering == OUTBOX_ORDER_NONE)};

	outbox_query("UPDATE outbox.parked SET status = 'retrying',"
		  " next_attempt_at = pg_catalog.now()"
		  " WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
		  " AND status OPERATOR(pg_catalog.=) 'blocked' AND ($2 OR key IS NULL)"
		  " RETURNING seq, next_attempt_at",
		  2, (Oid[]) {INT4OID, BOOLOID}, args, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Row			row = fetch_row(i);

		outbox_endpoint_add_retry(ep, row_int8(row, 0), row_time(row, 1, 0), NULL, 0);
	}
}

void
outbox_catalog_load_parked(OutboxEndpoint *ep)
{
	Datum		args[1] = {Int32GetDatum(ep->id)};
	TimestampTz latest = GetCurrentTimestamp() + ep->backoff_max;
	bool		no_lane = false;

	outbox_query("SELECT seq, key, status, next_attempt_at, reason, batch"
		  " FROM outbox.parked"
		  " WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
		  " AND status OPERATOR(pg_catalog.<>) 'blocked'",
		  1, (Oid[]) {INT4OID}, args, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Row			row = fetch_row(i);
		char	   *key = row_text(row, 1);

		/* A wait is longer only when the clock was set back and nobody was here. */
		if (row_is(row, 2, "retrying"))
			outbox_endpoint_add_retry(ep, row_int8(row, 0),
									  Min(row_time(row, 3, 0), latest), key,
									  row_int8(row, 5));
		else if (row_is(row, 2, "dead"))
		{
			ep->ndead++;
			if (ep->block_on_dead && outbox_endpoint_dead_blocks(row_text(row, 4)))
				outbox_endpoint_add_blocker(ep, key);
		}
		else
			outbox_retries_cancel(ep, row_int8(row, 0));
	}

	/*
	 * After the heads, so that a lane knows that it has one.  What is in no lane
	 * was blocked under another ordering: it is due.
	 */
	outbox_query("SELECT key, pg_catalog.count(*), pg_catalog.min(seq) FROM outbox.parked"
		  " WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
		  " AND status OPERATOR(pg_catalog.=) 'blocked' GROUP BY key",
		  1, (Oid[]) {INT4OID}, args, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Row			row = fetch_row(i);
		char	   *key = row_text(row, 0);

		if (outbox_lane_key(ep, key) == NULL)
			no_lane = true;
		else
			outbox_endpoint_add_followers(ep, key, row_int8(row, 1), row_int8(row, 2));
	}
	if (no_lane)
		unblock(ep);
}

typedef struct Loading
{
	int			n;
	struct
	{
		int64		seq;
		char	   *key;
		int			attempts;
		TimestampTz first_attempt_at;
		OutboxRedelivery redelivery;
		int64		group;
		OutboxEvent *event;
	}		   *rows;
} Loading;

static void
take_loaded(void *arg, void *wanted, OutboxEvent *event)
{
	Loading    *l = arg;

	(void) wanted;
	for (int i = 0; i < l->n; i++)
		if (l->rows[i].seq == event->seq && l->rows[i].event == NULL)
		{
			l->rows[i].event = event;
			event->page->refs++;
		}
}

/*
 * Rows whose event is nowhere.  They are found while the log is read; the next
 * settle says so in the one place where users look.
 */
typedef struct Gone
{
	int32		endpoint_id;
	int64		seq;
} Gone;

static Gone *gone;
static int	ngone;

static void
event_is_gone(OutboxEndpoint *ep, int64 seq)
{
	ereport(WARNING,
			(errmsg("outbox event with seq " INT64_FORMAT " for endpoint \"%s\" is gone",
					seq, ep->name)));
	gone = gone == NULL ? MemoryContextAlloc(TopMemoryContext, sizeof(Gone)) :
		repalloc(gone, sizeof(Gone) * (ngone + 1));
	gone[ngone].endpoint_id = ep->id;
	gone[ngone++].seq = seq;
	ep->ndead++;
	ep->dirty = true;
}

void
outbox_catalog_write_gone(void)
{
	for (int i = 0; i < ngone; i++)
	{
		Datum		args[2] = {Int32GetDatum(gone[i].endpoint_id),
		Int64GetDatum(gone[i].seq)};

		outbox_query("UPDATE outbox.parked SET status = 'dead', reason = 'event is gone'"
			  " WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
			  " AND seq OPERATOR(pg_catalog.=) $2",
			  2, (Oid[]) {INT4OID, INT8OID}, args, NULL);
	}
	ngone = 0;
}

/*
 * After a seek: what is parked and lies ahead again will be read again.  What
 * was cancelled stays so.
 */
void
outbox_catalog_forget_parked(int32 endpoint_id, const OutboxTick *start)
{
	Datum		args[2] = {Int32GetDatum(endpoint_id),
	CStringGetTextDatum(outbox_tick_snapshot(start))};

	outbox_query("DELETE FROM outbox.parked p WHERE p.endpoint_id OPERATOR(pg_catalog.=) $1"
		  " AND p.status OPERATOR(pg_catalog.<>) 'cancelled'"
		  " AND EXISTS (SELECT 1 FROM outbox.events e"
		  " WHERE e.seq OPERATOR(pg_catalog.=) p.seq AND NOT"
		  " pg_catalog.pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid),"
		  " $2::pg_catalog.pg_snapshot))",
		  2, (Oid[]) {INT4OID, TEXTOID}, args, NULL);
}

#define LOADED "seq, key, attempts, first_attempt_at, redelivery, batch"

/* The rows of SPI_tuptable, which are LOADED. */
static void
load_rows(OutboxEndpoint *ep, bool retries)
{
	Loading		l = {.n = (int) SPI_processed};
	int64	   *seqs = palloc(sizeof(int64) * Max(l.n, 1));

	l.rows = palloc0(sizeof(*l.rows) * Max(l.n, 1));
	for (int i = 0; i < l.n; i++)
	{
		Row			row = fetch_row(i);

		seqs[i] = l.rows[i].seq = row_int8(row, 0);
		l.rows[i].key = row_text(row, 1);
		l.rows[i].attempts = row_int4(row, 2);
		l.rows[i].first_attempt_at = row_time(row, 3, 0);
		l.rows[i].redelivery = DatumGetInt16(row.values[4]);
		l.rows[i].group = row_int8(row, 5);
	}
	outbox_log_fetch(seqs, l.n, take_loaded, &l);
	for (int i = 0; i < l.n; i++)
	{
		if (l.rows[i].event == NULL)
		{
			event_is_gone(ep, l.rows[i].seq);
			outbox_endpoint_load_failed(ep, l.rows[i].seq, l.rows[i].key, retries);
			continue;
		}
		outbox_endpoint_load(ep, l.rows[i].event, l.rows[i].attempts,
							 l.rows[i].first_attempt_at, l.rows[i].redelivery,
							 retries, l.rows[i].group);
		outbox_page_unref(l.rows[i].event->page);
	}
}

static Datum
int8_array(const int64 *values, int n)
{
	Datum	   *elems = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elems[i] = Int64GetDatum(values[i]);
	return PointerGetDatum(construct_array(elems, n, INT8OID, 8, FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

void
outbox_catalog_load_retries(OutboxEndpoint *ep, const int64 *seqs, int n)
{
	Datum		args[2] = {Int32GetDatum(ep->id), int8_array(seqs, n)};
	static SPIPlanPtr plan;

	outbox_plan_run(&plan,
				"SELECT " LOADED " FROM outbox.parked"
				" WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
				" AND seq OPERATOR(pg_catalog.=) ANY ($2)"
				" AND status OPERATOR(pg_catalog.=) 'retrying' ORDER BY seq",
				2, (Oid[]) {INT4OID, INT8ARRAYOID}, args, NULL);
	load_rows(ep, true);

	/* Rows that are no more: whoever removed them took the delivery back. */
	for (int i = 0; i < n; i++)
		outbox_endpoint_load_failed(ep, seqs[i], NULL, true);
}

void
outbox_catalog_load_followers(OutboxEndpoint *ep)
{
	static SPIPlanPtr of_key;
	static SPIPlanPtr of_all;

	while (!dlist_is_empty(&ep->loading))
	{
		OutboxLane *lane = dlist_container(OutboxLane, loading_node,
										   dlist_pop_head_node(&ep->loading));
		Datum		args[3] = {Int32GetDatum(ep->id),
		Int64GetDatum(outbox_endpoint_at_once(ep)), CStringGetTextDatum(lane->key)};

		lane->on_loading = false;
		if (ep->ordering == OUTBOX_ORDER_STRICT)
			outbox_plan_run(&of_all,
						"SELECT " LOADED " FROM outbox.parked"
						" WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
						" AND status OPERATOR(pg_catalog.=) 'blocked' ORDER BY seq LIMIT $2",
						2, (Oid[]) {INT4OID, INT8OID}, args, NULL);
		else
			outbox_plan_run(&of_key,
						"SELECT " LOADED " FROM outbox.parked"
						" WHERE endpoint_id OPERATOR(pg_catalog.=) $1"
						" AND key OPERATOR(pg_catalog.=) $3"
						" AND status OPERATOR(pg_catalog.=) 'blocked' ORDER BY seq LIMIT $2",
						3, (Oid[]) {INT4OID, INT8OID, TEXTOID}, args, NULL);
		if (SPI_processed == 0)
			outbox_endpoint_no_followers(ep, lane);
		else
			load_rows(ep, false);
	}
}

static void
take_pending(void *arg, void *wanted, OutboxEvent *event)
{
	Loading    *l = arg;

	(void) wanted;
	l->rows = repalloc(l->rows, sizeof(*l->rows) * (l->n + 1));
	memset(&l->rows[l->n], 0, sizeof(*l->rows));
	l->rows[l->n].seq = event->seq;
	l->rows[l->n++].event = event;
	event->page->refs++;
}

static int
compare_loaded(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

void
outbox_catalog_load_pending(OutboxEndpoint *ep, const int64 *seqs, int n)
{
	Loading		l = {.rows = palloc(sizeof(*l.rows))};

	if (n == 0)
		return;
	outbox_log_fetch(seqs, n, take_pending, &l);
	qsort(l.rows, l.n, sizeof(*l.rows), compare_loaded);
	for (int i = 0; i < l.n; i++)
	{
		outbox_endpoint_admit(ep, l.rows[i].event);
		outbox_page_unref(l.rows[i].event->page);
	}
}
