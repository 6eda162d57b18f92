/*
 * fetch.c
 *	  Reads events of this log by their numbers, from the log or from
 *	  outbox.kept_events.
 */
#include "base/outbox.h"

#include "access/htup_details.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/query.h"
#include "base/table_rows.h"
#include "log/durable.h"
#include "log/event_stamp.h"
#include "log/log_scan.h"
#include "log/page.h"
#include "log/standbys.h"
#include "log/transaction.h"

#define COL(name) (Anum_events_##name - 1)

XLogRecPtr outbox_fetched_lsn;

/*
 * The WAL of an event that is read by its number may not be durable yet.  A test event
 * was never read from the log, and a follower may have been parked while a standby was
 * away.
 */
static XLogRecPtr
fetched_lsn(const Datum *values)
{
	uint64 xid = outbox_row_xid(values);

	if (outbox_standbys_required())
		return outbox_log_end();
	return outbox_commit_lsn(xid, NULL);
}

typedef struct FetchState
{
	OutboxPage		*page;
	OutboxLogVisitFn take;
	void			*arg;
	bool			 whole;
	int				 wanted;
	int64			*found; /* numbers of the first 'wanted' rows found */
	int				 n;
} FetchState;

static void
fetch_one(FetchState *st, Datum *values, bool *nulls)
{
	uint64		 xid = outbox_row_xid(values);
	OutboxRow	 row;
	OutboxEvent *event;

	if (xid == 0)
		return;
	if (st->n < st->wanted)
		st->found[st->n] = DatumGetInt64(values[COL(seq)]);
	row = outbox_row_make(values, nulls, xid);
	event = outbox_page_add(st->page, &row, st->whole);
	st->n++;
	st->page->lsn = Max(st->page->lsn, fetched_lsn(values));
	st->take(st->arg, NULL, event);
}

static bool
fetch_row_of_log(void *arg, TupleTableSlot *slot)
{
	slot_getallattrs(slot);
	fetch_one(arg, slot->tts_values, slot->tts_isnull);
	return true;
}

/* Events that have outlived their piece of the log. */
static void
fetch_kept(Datum array, FetchState *st)
{
	uint64 n;

	outbox_lock_indexes(OUTBOX_TABLE_KEPT_EVENTS, OUTBOX_TABLE_KEPT_EVENTS);
	n = outbox_plan_run("SELECT " OUTBOX_EVENT_COLUMNS
						" FROM outbox.kept_events WHERE seq = ANY ($1)",
						arg_datum(INT8ARRAYOID, array));
	for (uint64 i = 0; i < n; i++)
	{
		Datum values[Natts_events];
		bool  nulls[Natts_events];

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, values, nulls);
		fetch_one(st, values, nulls);
	}
}

static void
fetch(const int64 *seqs, int n, FetchState *st)
{
	int64 *missing = palloc(sizeof(int64) * Max(n, 1));
	int	   nmissing = 0;
	int	   nfound;

	st->wanted = n;
	st->found = palloc(sizeof(int64) * Max(n, 1));
	st->page = outbox_page_create(NULL, NULL);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		outbox_scan_these(outbox_int8_array(seqs, n), GetActiveSnapshot(),
						  fetch_row_of_log, st);
		PopActiveSnapshot();
		nfound = st->n;
		if (nfound < n)
		{
			qsort(st->found, nfound, sizeof(int64), outbox_compare_int8);
			for (int i = 0; i < n; i++)
				if (bsearch(&seqs[i], st->found, nfound, sizeof(int64),
							outbox_compare_int8) == NULL)
					missing[nmissing++] = seqs[i];
			fetch_kept(outbox_int8_array(missing, nmissing), st);
		}
	}
	PG_CATCH();
	{
		outbox_page_unref(st->page);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

OutboxPage *
outbox_fetch(const int64 *seqs, int n, OutboxLogVisitFn take, void *arg)
{
	FetchState st = {.take = take, .arg = arg};

	fetch(seqs, n, &st);
	outbox_fetched_lsn = Max(outbox_fetched_lsn, st.page->lsn);
	return st.page;
}

/*
 * The search for an event by id, because an event of another server can have the same
 * number.
 */
typedef struct Whole
{
	const OutboxEvent *part;
	OutboxEvent		  *event;
} Whole;

static void
take_whole(void *arg, void *wanted, OutboxEvent *event)
{
	Whole *w = arg;

	if (memcmp(&event->id, &w->part->id, sizeof(event->id)) != 0)
		return;
	w->event = event;
}

OutboxEvent *
outbox_fetch_whole(const OutboxEvent *event)
{
	Whole	   w = {.part = event};
	FetchState st = {.take = take_whole, .arg = &w, .whole = true};

	fetch(&event->seq, 1, &st);
	if (w.event == NULL)
		outbox_page_unref(st.page);
	return w.event;
}
