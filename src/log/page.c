/*
 * page.c
 *	  Owns pages: rows of the log as events in memory, and which payloads are read with
 *	  them.
 *
 * An event without its payload is small.  So each endpoint may have one, whatever memory
 * there is (window.c), and its payload waits for memory only when it is to be sent.
 */
#include "base/outbox.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/xid8.h"

#include "base/compat.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "base/version.h"
#include "log/event_stamp.h"
#include "log/forgotten.h"
#include "log/page.h"
#include "log/step.h"

/*
 * A payload of at most this many bytes is never left in the log.  To read it again
 * would cost more.
 */
#define ALWAYS_READ 2048

/* Blocks of a page's memory.  A page of one event takes little more than the event. */
#define BLOCK_MIN 1024
#define BLOCK_MAX (128 * 1024)

/* A buffer of at most this many bytes is kept for the next event. */
#define JSON_TEXT_KEPT (64 * 1024)

static MemoryContext scratch; /* for memory that outbox_json_text() does not free */

#define COL(name) (Anum_events_##name - 1)

static MemoryContext page_cxt;

void
outbox_page_init(MemoryContext parent)
{
	page_cxt = AllocSetContextCreate(parent, "outbox pages", ALLOCSET_SMALL_SIZES);
}

void
outbox_page_unref(OutboxPage *page)
{
	if (--page->refs > 0)
		return;
	if (page->part)
		page->part->whole = NULL;
	outbox_memory_account(&page->bytes, 0);
	outbox_tick_unref(page->read);
	outbox_tick_unref(page->reading);
	MemoryContextDelete(page->cxt);
}

void
outbox_page_account(OutboxPage *page)
{
	outbox_memory_account(&page->bytes, MemoryContextMemAllocated(page->cxt, true));
}

OutboxPage *
outbox_page_create(OutboxTick *read, OutboxTick *reading)
{
	MemoryContext cxt;
	OutboxPage	 *page;

	/*
	 * Its memory is freed all at once.  The blocks are smaller than the sizes that
	 * malloc() takes from the system and gives back each time (memory.c).
	 */
	cxt = GenerationContextCreate(page_cxt, "outbox page", 0, BLOCK_MIN, BLOCK_MAX);
	page = MemoryContextAllocZero(cxt, sizeof(OutboxPage));
	page->cxt = cxt;
	page->refs = 1;
	page->read = outbox_tick_ref(read);
	page->reading = outbox_tick_ref(reading);
	return page;
}

/* Writes the text of a uuid as uuid_out() does, without an allocation. */
void
outbox_uuid_text(const pg_uuid_t *uuid, char *out)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		*out++ = hex[uuid->data[i] >> 4];
		*out++ = hex[uuid->data[i] & 15];
	}
	*out = '\0';
}

/* ------------------------------------------------------------- payloads */

static bool
is_left(size_t bytes, bool whole)
{
	return !whole && bytes > ALWAYS_READ &&
		!outbox_memory_fits_ahead(OUTBOX_JSON_READING * bytes);
}

static void
put_text(StringInfo text, Jsonb *jb)
{
	MemoryContext old = MemoryContextSwitchTo(scratch);

	outbox_json_text(text, jb);
	MemoryContextSwitchTo(old);
	MemoryContextReset(scratch);
}

/* A large text is made in the page, and then shrunk to its size. */
static char *
large_text(OutboxPage *page, Jsonb *jb, size_t *len)
{
	MemoryContext old = MemoryContextSwitchTo(
		AllocSetContextCreate(page->cxt, "outbox payload", ALLOCSET_SMALL_SIZES));
	StringInfoData text;

	initStringInfo(&text);
	put_text(&text, jb);
	*len = text.len;
	text.data = repalloc(text.data, text.len + 1);
	MemoryContextSwitchTo(old);
	return text.data;
}

/*
 * Returns the text in a piece of memory of exactly its size.  NULL: it is left in the
 * log.
 */
static char *
small_text(Jsonb *jb, size_t *len, bool whole)
{
	static StringInfoData text;
	char				 *copy = NULL;

	if (text.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&text);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&text);
	put_text(&text, jb);
	*len = text.len;

	/* The text of a short numeric can be long, so its size is checked again. */
	if (!is_left(text.len, whole))
	{
		copy = palloc(text.len + 1);
		memcpy(copy, text.data, text.len + 1);
	}
	if (text.maxlen > JSON_TEXT_KEPT)
	{
		pfree(text.data);
		text.data = NULL;
	}
	return copy;
}

static void
read_json(OutboxEvent *event, Datum value, bool whole)
{
	Jsonb *jb;

	event->payload_len = toast_raw_datum_size(value);
	if (is_left(event->payload_len, whole))
		return;
	if (scratch == NULL)
		scratch = AllocSetContextCreate(TopMemoryContext, "outbox payload text",
										ALLOCSET_DEFAULT_SIZES);
	jb = DatumGetJsonbP(value);
	event->payload = VARSIZE(jb) > JSON_TEXT_KEPT ?
		large_text(event->page, jb, &event->payload_len) :
		small_text(jb, &event->payload_len, whole);
	if ((Pointer) jb != DatumGetPointer(value))
		pfree(jb);
}

static void
read_bytes(OutboxEvent *event, Datum value, bool whole)
{
	bytea *body;

	event->payload_len = toast_raw_datum_size(value) - VARHDRSZ;
	if (is_left(event->payload_len, whole))
		return;
	body = DatumGetByteaPCopy(value);
	event->payload = VARDATA(body);
}

/* jsonb becomes text here, once for all endpoints that get the event. */
static void
read_payload(OutboxEvent *event, const OutboxRow *row, bool whole)
{
	const Datum *values = row->values;
	const bool	*nulls = row->nulls;

	if (row->forgotten)
		event->payload = pstrdup("");
	else if (!nulls[COL(body)])
	{
		event->content_type = nulls[COL(content_type)] ?
			pstrdup("application/octet-stream") :
			TextDatumGetCString(values[COL(content_type)]);
		read_bytes(event, values[COL(body)], whole);
	}
	else if (!nulls[COL(payload)])
		read_json(event, values[COL(payload)], whole);
	else
	{
		/* It cannot be read. */
		event->payload = pstrdup("null");
		event->payload_len = 4;
	}
}

/* ----------------------------------------------------------------- rows */

uint64
outbox_row_xid(const Datum *values)
{
	return outbox_log_xid(DatumGetInt64(values[COL(epoch)]),
						  U64FromFullTransactionId(
							  DatumGetFullTransactionId(values[COL(xid)])));
}

static char *
text_or_null(Datum value, bool isnull)
{
	return isnull ? NULL : TextDatumGetCString(value);
}

/*
 * The string that orders an event: its key, among the events of its tenant.  A tenant
 * has no control character, so no two pairs give the same string.  Returns 'key' itself
 * where there is no tenant.
 */
static char *
order_key(const char *tenant, char *key)
{
	if (key == NULL || (tenant == NULL && strchr(key, '\001') == NULL))
		return key;
	return psprintf("%s\001%s", tenant ? tenant : "", key);
}

/* order_key(tenant text, key text): for rows of outbox.parked that SQL makes. */
OUTBOX_FUNCTION(outbox_order_key_1_0, 2)
{
	char *tenant = PG_ARGISNULL(0) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(0));

	if (PG_ARGISNULL(1))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(
		cstring_to_text(order_key(tenant, text_to_cstring(PG_GETARG_TEXT_PP(1)))));
}

OutboxEvent *
outbox_page_add(OutboxPage *page, const OutboxRow *row, bool whole)
{
	MemoryContext old = MemoryContextSwitchTo(page->cxt);
	OutboxEvent	 *event = palloc0(sizeof(OutboxEvent));
	const Datum	 *values = row->values;
	const bool	 *nulls = row->nulls;

	event->page = page;
	event->seq = DatumGetInt64(values[COL(seq)]);
	event->id = *DatumGetUUIDP(values[COL(id)]);
	outbox_uuid_text(&event->id, event->id_text);
	event->created_at = DatumGetTimestampTz(values[COL(created_at)]);
	event->expires_at = nulls[COL(expires_at)] ?
		DT_NOEND :
		DatumGetTimestampTz(values[COL(expires_at)]);
	event->topic = nulls[COL(topic)] ? pstrdup("") :
									   TextDatumGetCString(values[COL(topic)]);
	event->type = text_or_null(values[COL(type)], nulls[COL(type)]);
	event->unreadable = row->unreadable;
	event->forgotten = row->forgotten;
	event->key = text_or_null(values[COL(key)], nulls[COL(key)] || row->forgotten);
	event->tenant = text_or_null(values[COL(tenant)], nulls[COL(tenant)]);
	event->order_key = order_key(event->tenant, event->key);
	if (!row->forgotten && !nulls[COL(headers)])
		event->headers = outbox_headers_or_null(DatumGetJsonbPCopy(values[COL(headers)]));
	read_payload(event, row, whole);
	MemoryContextSwitchTo(old);
	outbox_page_account(page);
	return event;
}

/* Reads all that outbox_page_add() would read. */
static void
probe_row(void *arg)
{
	OutboxPage *page = outbox_page_create(NULL, NULL);
	OutboxRow  *row = arg;

	PG_TRY();
	{
		(void) outbox_page_add(page, row, true);
	}
	PG_FINALLY();
	{
		outbox_page_unref(page);
	}
	PG_END_TRY();
}

static void
check_row(OutboxRow *row)
{
	OutboxStepError failure;

	if (row->forgotten || !outbox_step_reading_failed() ||
		outbox_step_try_part(probe_row, row, &failure))
		return;
	if (failure.sqlerrcode != ERRCODE_DATA_CORRUPTED &&
		ERRCODE_TO_CATEGORY(failure.sqlerrcode) != ERRCODE_DATA_EXCEPTION &&
		ERRCODE_TO_CATEGORY(failure.sqlerrcode) != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
		ereport(ERROR,
				(errcode(failure.sqlerrcode), errmsg_internal("%s", failure.message)));
	ereport(
		WARNING,
		(errcode(failure.sqlerrcode),
		 errmsg("outbox event with seq " INT64_FORMAT " cannot be read: %s",
				DatumGetInt64(row->values[COL(seq)]), failure.message),
		 errhint(
			 "Its deliveries are dead letters with the reason \"unreadable\". Once the row is repaired, outbox.retry() sends them.")));
	row->nulls[COL(headers)] = row->nulls[COL(payload)] = row->nulls[COL(body)] = true;
	row->unreadable = true;
}

/*
 * A row with neither payload nor body was emptied.  Other rows that are to be emptied
 * are known by their tenant, key and transaction.
 */
OutboxRow
outbox_row_make(Datum *values, bool *nulls, uint64 xid)
{
	OutboxRow row = {.values = values, .nulls = nulls, .xid = xid};

	row.forgotten = (nulls[COL(payload)] && nulls[COL(body)]) ||
		(!nulls[COL(tenant)] &&
		 outbox_forgotten_covers(DatumGetTextPP(values[COL(tenant)]), values[COL(key)],
								 nulls[COL(key)], xid));
	check_row(&row);
	return row;
}

bool
outbox_row_is_covered(const OutboxRow *row, const OutboxCursor *c)
{
	return outbox_cursor_covers(c, row->xid, outbox_row_seq(row));
}

Jsonb *
outbox_row_payload(OutboxRow *row)
{
	if (row->payload == NULL && !row->nulls[COL(payload)])
		row->payload = DatumGetJsonbP(row->values[COL(payload)]);
	return row->payload;
}

const char *
outbox_row_tenant(OutboxRow *row, size_t *len)
{
	text *tenant;

	if (row->nulls[COL(tenant)])
		return NULL;
	tenant = DatumGetTextPP(row->values[COL(tenant)]);
	*len = VARSIZE_ANY_EXHDR(tenant);
	return VARDATA_ANY(tenant);
}

bool
outbox_row_unreadable(const OutboxRow *row)
{
	return row->unreadable;
}

bool
outbox_row_forgotten(const OutboxRow *row)
{
	return row->forgotten;
}

int64
outbox_row_seq(const OutboxRow *row)
{
	return DatumGetInt64(row->values[COL(seq)]);
}

TimestampTz
outbox_row_created_at(const OutboxRow *row)
{
	return DatumGetTimestampTz(row->values[COL(created_at)]);
}
