/*
 * kept_limit.c
 *	  Owns how much is kept for a tenant: its limits max_kept, max_kept_bytes and
 *	  max_kept_age.
 *
 * What is kept are rows of outbox.parked that wait or are dead.  Beyond the limits the
 * oldest of them are given up, as if an operator had discarded them: each gets a command
 * (operator_commands.c), so it ends in the order of its key, and is charged to its endpoint.
 * Those that were not dead are counted as dead, for the reason "backlog".  README.md says
 * why.
 *
 * Rows and memory of an endpoint change together, so the number of rows is exact.  It
 * changes when commands are carried out, so a tenant whose commands wait is left alone.
 *
 * The size of each row is not known.  So the sizes of all rows are read once, in slices, and
 * afterwards the ones of new rows, which have higher numbers.  A row that goes is taken to
 * have the mean size, because its own is not known any more.  If many rows have gone or come
 * out of order, all sizes are read again.
 */
#include "base/outbox.h"

#include "nodes/pg_list.h"

#include "base/log_lines.h"
#include "base/query.h"
#include "endpoint/subscribers.h"
#include "endpoint/tenant.h"
#include "log/kept.h"
#include "log/step.h"
#include "log/transaction.h"
#include "worker/kept_limit.h"
#include "worker/loop.h"

/* µs between two looks at all tenants, and while rows are given up. */
#define LOOK_EVERY (1 * USECS_PER_SEC)
#define AGAIN_AFTER (100 * 1000)

/* Rows whose sizes are read at a time. */
#define SLICE_ROWS 300

/* All sizes are read again after 1/GUESSED of them were guessed. */
#define GUESSED 8

/* Rows that one look gives up of a tenant at most; by their age. */
#define AT_ONCE 500
#define OLD_AT_ONCE 100

/*
 * No tenant is begun with after this time (µs).  Between two steps, the worker does other
 * work for REST times as long as the step took.
 */
#define STEP_TIME (5 * 1000)
#define REST 19

/* In SQL: the oldest rows p of the endpoints $1 behind the numbers $2, up to $3 of each. */
#define OLDEST_ROWS \
	" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2))" \
	" WITH ORDINALITY i(id, seq, n) CROSS JOIN LATERAL" \
	" (SELECT k.seq, k.event_id FROM outbox.parked k WHERE k.endpoint_id = i.id" \
	" AND k.seq > i.seq AND k.status <> 'cancelled' ORDER BY k.seq LIMIT $3) p"

/* The bytes of an event and its row p; about, without indexes. */
#define SIZE_OF_ROW \
	"(SELECT 256 + COALESCE(pg_catalog.pg_column_size(a.payload), 0)" \
	" + COALESCE(pg_catalog.pg_column_size(a.body), 0)" \
	" + COALESCE(pg_catalog.pg_column_size(a.headers), 0)" \
	" + 2 * COALESCE(pg_catalog.pg_column_size(a.key), 0)" \
	" FROM outbox.all_events a WHERE a.seq = p.seq AND a.id = p.event_id LIMIT 1)"

static TimestampTz look_at;
static int		   next; /* in the roster: whose tenant's turn it is */

/* The endpoints of a tenant that have rows, and the rows that are given up. */
typedef struct Candidates
{
	int				 n;
	OutboxEndpoint **endpoints;
	int64			*upto; /* by endpoint: the rows up to it are cancelled or given up */
	int				 nrows;
	int64			 bytes;
} Candidates;

/* What is to be given up of a tenant: so many rows and bytes, and the events before 'old'. */
typedef struct Excess
{
	int64		rows;
	int64		bytes;
	TimestampTz old;
} Excess;

/* Returns how many bytes are kept.  Rows whose size was not read count as the others. */
static int64
bytes_kept(const OutboxTenant *t)
{
	const OutboxKeptLimit *kept = t->kept;

	return kept->sized > 0 ? (int64) ((double) kept->bytes / kept->sized * kept->rows) :
							 0;
}

TimestampTz
outbox_kept_limit_due(void)
{
	return outbox_tenants_are_limited() ? look_at : DT_NOEND;
}

bool
outbox_kept_limit_has_room(const OutboxEndpoint *ep)
{
	const OutboxTenant *t = ep->tenant;

	if (t == NULL || t->kept == NULL)
		return true;
	if (t->kept->most.bytes > 0 && bytes_kept(t) > t->kept->most.bytes)
		return false;
	return t->kept->most.rows == 0 || t->kept->rows < t->kept->most.rows + 2 * AT_ONCE;
}

static int64
rows_of(const OutboxEndpoint *ep)
{
	return ep->table->rows[OUTBOX_ROW_RETRYING] + ep->table->rows[OUTBOX_ROW_BLOCKED] +
		ep->table->rows[OUTBOX_ROW_DEAD];
}

static bool
may_be_asked(const OutboxEndpoint *ep)
{
	return outbox_tenant_is_limited(ep->tenant) && !outbox_endpoint_rests(ep) &&
		!ep->member.dropped && !ep->member.recreate;
}

static void
count_rows(void)
{
	OutboxEndpoint **all = outbox_loop.roster.endpoints;

	for (int i = 0; i < outbox_loop.roster.n; i++)
		if (outbox_tenant_is_limited(all[i]->tenant))
		{
			all[i]->tenant->kept->rows = 0;
			all[i]->tenant->kept->looked = false;
		}
	for (int i = 0; i < outbox_loop.roster.n; i++)
		if (may_be_asked(all[i]))
			all[i]->tenant->kept->rows += rows_of(all[i]);
}

static void
add_candidate(void *arg, OutboxEndpoint *ep)
{
	Candidates *c = arg;

	if (!may_be_asked(ep) || rows_of(ep) == 0)
		return;
	c->endpoints[c->n] = ep;
	c->upto[c->n++] = ep->table->given_up;
}

static Datum
numbers_of(const Candidates *c)
{
	Datum *ids = palloc(sizeof(Datum) * Max(c->n, 1));

	for (int i = 0; i < c->n; i++)
		ids[i] = Int32GetDatum(c->endpoints[i]->id);
	return outbox_array(ids, c->n, INT4OID);
}

/* --------------------------------------------------------------- sizes */

/* Rows of so many bytes were given up. */
static void
leave(OutboxTenant *t, int64 rows, int64 bytes)
{
	OutboxKeptLimit *kept = t->kept;

	if (kept->most.bytes == 0 || bytes == 0)
		return;
	kept->rows -= rows;
	kept->sized = Max(kept->sized - rows, 0);
	kept->bytes = Max(kept->bytes - bytes, 0);
}

static void
begin_again(OutboxKeptLimit *kept, const Candidates *c)
{
	for (int i = 0; i < c->n; i++)
		c->endpoints[i]->table->sized = 0;
	kept->sized = kept->bytes = kept->changed = 0;
	kept->complete = false;
}

/* Rows that have gone since are taken to have the mean size. */
static void
notice_gone(OutboxKeptLimit *kept)
{
	if (kept->rows >= kept->sized)
		return;
	kept->changed += kept->sized - kept->rows;
	kept->bytes = (int64) ((double) kept->bytes / kept->sized * kept->rows);
	kept->sized = kept->rows;
}

/*
 * The endpoints come one after another, each from its own place on.  The inner LIMIT is
 * for the planner, which without statistics would read all rows of one endpoint.
 */
static void
read_sizes(const Candidates *c, Datum ids)
{
	int64 *from = palloc(sizeof(int64) * c->n);

	for (int i = 0; i < c->n; i++)
		from[i] = c->endpoints[i]->table->sized;
	outbox_plan_run("SELECT i.n, p.seq, " SIZE_OF_ROW OLDEST_ROWS " LIMIT $3",
					arg_datum(INT4ARRAYOID, ids), arg_int8s(from, c->n),
					arg_int8(SLICE_ROWS));
}

/* Reads the sizes of some rows of these endpoints, which are all that have rows. */
static void
size_rows(OutboxTenant *t, const Candidates *c, Datum ids)
{
	OutboxKeptLimit *kept = t->kept;

	if (kept->most.bytes == 0)
		return;
	notice_gone(kept);
	if (kept->complete && kept->changed > kept->rows / GUESSED)
		begin_again(kept, c);
	read_sizes(c, ids);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		OutboxParkedRows *table;
		int64			  e;
		int64			  seq;
		int32			  bytes;

		outbox_read_row(i, into_int8(&e), into_int8(&seq), into_int4(&bytes));
		table = c->endpoints[e - 1]->table;
		table->sized = Max(table->sized, seq);
		kept->bytes += bytes;
		kept->sized++;
	}
	kept->complete = SPI_processed < SLICE_ROWS;

	/* Rows that have come with lower numbers are taken to have the mean size. */
	if (kept->complete && kept->sized < kept->rows)
		kept->changed += kept->rows - kept->sized;
}

/* ---------------------------------------------------------------- rows */

/* True if the last command for one of these endpoints is not carried out yet. */
static bool
commands_wait(Datum ids, Datum upto)
{
	return outbox_plan_run("SELECT 1 FROM ROWS FROM (pg_catalog.unnest($1),"
						   " pg_catalog.unnest($2)) i(id, seq)"
						   " WHERE outbox.is_asked(i.id, 'limit', i.seq) LIMIT 1",
						   arg_datum(INT4ARRAYOID, ids),
						   arg_datum(INT8ARRAYOID, upto)) > 0;
}

/*
 * Reads the oldest rows, 'each' of an endpoint at most, in the order of their numbers.  The
 * times and the sizes of their events are read where they count.
 */
static void
read_oldest(Datum ids, Datum from, int each, const Excess *excess)
{
	outbox_plan_run(
		"SELECT i.n, p.seq, CASE WHEN $4 THEN (SELECT a.created_at"
		" FROM outbox.all_events a WHERE a.seq = p.seq AND a.id = p.event_id LIMIT 1) END,"
		" CASE WHEN $5 THEN " SIZE_OF_ROW " END" OLDEST_ROWS " ORDER BY p.seq",
		arg_datum(INT4ARRAYOID, ids), arg_datum(INT8ARRAYOID, from), arg_int8(each),
		arg_bool(excess->old != DT_NOBEGIN), arg_bool(excess->bytes > 0));
}

static bool
is_excess(const Candidates *c, TimestampTz created, const Excess *excess)
{
	return c->nrows < excess->rows || c->bytes < excess->bytes ||
		(excess->old != DT_NOBEGIN && created != 0 && created < excess->old);
}

/*
 * The rows before the first one that was read are cancelled, so the next look begins with it.
 * Where none was read, it begins anew.
 */
static void
skip_cancelled(Candidates *c)
{
	memset(c->upto, 0, sizeof(int64) * c->n);
	for (int i = (int) SPI_processed - 1; i >= 0; i--)
	{
		int64 e;
		int64 seq;

		outbox_read_row(i, into_int8(&e), into_int8(&seq));
		c->upto[e - 1] = seq - 1;
	}
}

/*
 * Chooses rows among the ones that were read, while there is an excess.  It ends where an
 * endpoint may have further rows that were not read, because these may be older than the
 * next ones of others.
 */
static Datum
choose_rows(Candidates *c, const Excess *excess, int each, Datum *seqs)
{
	int	   found = (int) SPI_processed;
	Datum *ids = palloc(sizeof(Datum) * Max(found, 1));
	int64 *numbers = palloc(sizeof(int64) * Max(found, 1));
	int	  *taken = palloc0(sizeof(int) * c->n);

	skip_cancelled(c);
	while (c->nrows < found)
	{
		int64		i;
		int64		seq;
		TimestampTz created;
		int32		bytes;

		outbox_read_row(c->nrows, into_int8(&i), into_int8(&seq), into_time(&created),
						into_int4(&bytes));
		if (c->nrows == AT_ONCE || !is_excess(c, created, excess))
			break;
		c->bytes += bytes;
		ids[c->nrows] = Int32GetDatum(c->endpoints[i - 1]->id);
		numbers[c->nrows++] = c->upto[i - 1] = seq;
		if (++taken[i - 1] == each)
			break;
	}
	*seqs = outbox_int8_array(numbers, c->nrows);
	return outbox_array(ids, c->nrows, INT4OID);
}

static void
write_commands(Datum ids, Datum seqs)
{
	outbox_plan_run("INSERT INTO outbox.commands (endpoint_id, action, seq)"
					" SELECT q.id, 'limit', q.seq FROM ROWS FROM (pg_catalog.unnest($1),"
					" pg_catalog.unnest($2)) q(id, seq)"
					" WHERE NOT outbox.is_asked(q.id, 'limit', q.seq) ORDER BY q.seq",
					arg_datum(INT4ARRAYOID, ids), arg_datum(INT8ARRAYOID, seqs));
}

/* While the sizes are not all known, nothing is given up because of them. */
static Excess
excess_of(const OutboxTenant *t, TimestampTz now)
{
	const OutboxKeptMost *most = &t->kept->most;
	Excess				  e = {.old = most->age > 0 ? now - most->age : DT_NOBEGIN};

	if (most->rows > 0)
		e.rows = Max(t->kept->rows - most->rows, 0);
	if (most->bytes > 0 && t->kept->complete)
		e.bytes = Max(bytes_kept(t) - most->bytes, 0);
	return e;
}

/* Returns false if commands of the tenant wait. */
static bool
examine(OutboxTenant *t, TimestampTz now, Candidates *c)
{
	Datum  ids = numbers_of(c);
	Datum  from = outbox_int8_array(c->upto, c->n);
	Excess excess;
	Datum  seqs;
	int	   each;

	if (commands_wait(ids, from))
		return false;
	size_rows(t, c, ids);
	excess = excess_of(t, now);
	if (excess.rows + excess.bytes == 0 && excess.old == DT_NOBEGIN)
		return true;
	each = (excess.rows + excess.bytes > 0 ? AT_ONCE : OLD_AT_ONCE) / c->n + 1;
	read_oldest(ids, from, each, &excess);
	ids = choose_rows(c, &excess, each, &seqs);
	if (c->nrows > 0)
		write_commands(ids, seqs);
	return true;
}

/*
 * After the commit.  When a tenant has no excess left, its commands are carried out, and
 * copies of the rows that it gave up may go.
 */
static void
note(OutboxTenant *t, const Candidates *c)
{
	for (int i = 0; i < c->n; i++)
		c->endpoints[i]->table->given_up = c->upto[i];
	t->kept->given_up += c->nrows;
	if (c->nrows > 0)
	{
		leave(t, c->nrows, c->bytes);
		outbox_loop.commands_pending = true;
	}
	else if (t->kept->given_up > 0)
	{
		ereport(
			outbox_log_line_may(OUTBOX_LINE_KEPT, t->name) ? LOG : DEBUG1,
			(errmsg(
				 "outbox kept more for tenant \"%s\" than its limits allow: " INT64_FORMAT
				 " deliveries are given up",
				 t->name, t->kept->given_up),
			 errhint(
				 "outbox.set_tenant_limits() changes max_kept, max_kept_bytes and max_kept_age.")));
		t->kept->given_up = 0;
		outbox_kept_released();
	}
}

/* Returns true if the tenant has to be examined again soon. */
static bool
look(OutboxTenant *t, TimestampTz now)
{
	Candidates c = {.endpoints = palloc(sizeof(OutboxEndpoint *) * t->nendpoints),
					.upto = palloc(sizeof(int64) * t->nendpoints)};
	Excess	   excess = excess_of(t, now);
	bool	   examined;

	if (excess.rows > 0 || t->kept->most.bytes > 0 || t->kept->most.age > 0 ||
		t->kept->given_up > 0)
		outbox_subscribers_of_tenant(t, add_candidate, &c);
	if (c.n == 0)
	{
		note(t, &c);
		return false;
	}
	outbox_txn_begin_step();
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_KEPT_EVENTS);
	examined = examine(t, now, &c);
	outbox_txn_commit();
	if (examined)
		note(t, &c);
	return !examined || c.nrows > 0 ||
		(t->kept->most.bytes > 0 && t->kept->rows > 0 && !t->kept->complete);
}

void
outbox_kept_limit_run(void *arg)
{
	TimestampTz now = *(TimestampTz *) arg;
	TimestampTz begun = GetCurrentTimestamp();
	TimestampTz counted;
	bool		more = false;
	bool		looked = false;
	int			i;

	count_rows();
	counted = GetCurrentTimestamp();
	for (i = 0; i < outbox_loop.roster.n; i++)
	{
		OutboxEndpoint *ep;

		if (looked && GetCurrentTimestamp() - counted >= STEP_TIME)
			break;
		if (next >= outbox_loop.roster.n)
			next = 0;
		ep = outbox_loop.roster.endpoints[next++];
		if (!may_be_asked(ep) || ep->tenant->kept->looked)
			continue;
		ep->tenant->kept->looked = looked = true;
		more = look(ep->tenant, now) || more;
	}
	look_at = outbox_step_rest(begun, REST);
	if (i == outbox_loop.roster.n)
		look_at = Max(look_at, begun + (more ? AGAIN_AFTER : LOOK_EVERY));
}
