/*
 * payload.c
 *	  Owns which payloads are in memory: those that are read with their event, and
 *	  those that stay in the log until they are sent.
 *
 * An event without its payload is small.  So memory is short only for payloads,
 * bodies and answers: positions, lanes and retries go on as always, and nothing
 * has to wait before its turn to be sent has come.
 */
#include "base/outbox.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/memory.h"
#include "log/event_stamp.h"
#include "log/payload.h"
#include "log/step.h"
#include "log/transaction.h"

/* A payload of so many bytes is never left: to read it again would cost more. */
#define ALWAYS_READ 2048

/* Bytes of a buffer that is kept from one event to the next. */
#define JSON_TEXT_KEPT (64 * 1024)

#define COL(name) (Anum_events_##name - 1)

/* A jsonb that becomes text takes so many times its size: itself, a string, the text. */
#define JSON_READING 3

static MemoryContext scratch;	/* of what jsonb's output leaves behind */

bool		outbox_payload_readable = true;
bool		outbox_payload_wanted;

static bool
is_left(size_t bytes, bool whole)
{
	return !whole && bytes > ALWAYS_READ && !outbox_memory_fits_ahead(JSON_READING * bytes);
}

/* It copies each string, and leaves the copy to the memory context. */
static void
put_text(StringInfo text, Jsonb *jb)
{
	MemoryContext old = MemoryContextSwitchTo(scratch);

	JsonbToCString(text, &jb->root, VARSIZE(jb));
	MemoryContextSwitchTo(old);
	MemoryContextReset(scratch);
}

/* A large text is made where it stays, and then cut to its size. */
static char *
large_text(OutboxPage *page, Jsonb *jb, size_t *len)
{
	MemoryContext old = MemoryContextSwitchTo(AllocSetContextCreate(page->cxt,
																	"outbox payload",
																	ALLOCSET_SMALL_SIZES));
	StringInfoData text;

	initStringInfo(&text);
	put_text(&text, jb);
	*len = text.len;
	text.data = repalloc(text.data, text.len + 1);
	MemoryContextSwitchTo(old);
	return text.data;
}

/* With not a byte more than it needs.  NULL: it is left. */
static char *
small_text(Jsonb *jb, size_t *len, bool whole)
{
	static StringInfoData text;
	char	   *copy = NULL;

	if (text.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&text);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&text);
	put_text(&text, jb);
	*len = text.len;

	/* A short numeric can be a long text. */
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
	Jsonb	   *jb;

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
	bytea	   *body;

	event->payload_len = toast_raw_datum_size(value) - VARHDRSZ;
	if (is_left(event->payload_len, whole))
		return;
	body = DatumGetByteaPCopy(value);
	event->payload = VARDATA(body);
}

/* jsonb is turned into text here, once, however many endpoints will get it. */
void
outbox_payload_read(OutboxEvent *event, const Datum *values, const bool *nulls,
					bool whole)
{
	if (!nulls[COL(body)])
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
		/* Only a row that came past the checks has neither. */
		event->payload = pstrdup("null");
		event->payload_len = 4;
	}
}

static bool
has_body(const OutboxEvent *event, OutboxFormat format)
{
	return format != OUTBOX_PAYLOAD_ITSELF && event->body[OUTBOX_BODY_OF(format)].data != NULL;
}

/* Which event has what a request is made of; NULL: it has to be read. */
static OutboxEvent *
at_hand(const OutboxEvent *event, OutboxFormat format)
{
	if (event->payload)
		return unconstify(OutboxEvent *, event);
	return event->whole && (event->whole->payload || has_body(event->whole, format)) ?
		event->whole : NULL;
}

size_t
outbox_payload_cost(const OutboxEvent *event, OutboxFormat format)
{
	const OutboxEvent *from = at_hand(event, format);
	size_t		len = event->payload_len;
	size_t		body = len;

	if (from && has_body(from, format))
		return 0;
	if (event->content_type)
		body = OUTBOX_BODY_OF(format) == OUTBOX_FORMAT_RAW ? 0 : len / 3 * 4;
	if (from)
		return body;
	return event->content_type ? len + body : JSON_READING * len;
}

typedef struct Bringing
{
	const OutboxEvent *event;
	OutboxEvent *whole;
	bool		begun;
} Bringing;

static void
bring_whole(void *arg)
{
	Bringing   *b = arg;

	b->begun = outbox_begin(false);
	if (!b->begun)
		return;
	b->whole = outbox_log_fetch_whole(b->event);
	outbox_commit();
}

/*
 * The copy is read by the number of the event, and is the same only if it has the
 * same id.  It comes from a transaction that was durable before: it waits for
 * nothing that the event does not wait for.
 */
OutboxEvent *
outbox_payload_bring(OutboxEvent *event, OutboxFormat format, bool *gone)
{
	OutboxEvent *whole = at_hand(event, format);
	Bringing	b = {.event = event};
	OutboxStepError failure;

	*gone = false;
	if (whole)
	{
		whole->page->refs++;
		return whole;
	}
	if (!outbox_payload_readable)
	{
		outbox_payload_wanted = true;
		return NULL;
	}
	if (outbox_step_held(OUTBOX_STEP_READ, 0))
		return NULL;
	if (!outbox_step_try(bring_whole, &b, &failure))
	{
		if (b.whole)
			outbox_page_unref(b.whole->page);

		/* A damaged row is not there any more; else it is tried again. */
		*gone = failure.sqlerrcode == ERRCODE_DATA_CORRUPTED ||
			ERRCODE_TO_CATEGORY(failure.sqlerrcode) == ERRCODE_DATA_EXCEPTION;
		if (!*gone)
			outbox_step_hold(OUTBOX_STEP_READ, 0, &failure);
		return NULL;
	}
	if (!b.begun)
		return NULL;
	whole = b.whole;
	*gone = whole == NULL;
	if (whole)
	{
		if (event->whole)
			event->whole->page->part = NULL;
		event->whole = whole;
		whole->page->part = event;
		whole->page->lsn = event->page->lsn;
	}
	return whole;
}

void
outbox_payload_used(OutboxEvent *event)
{
	if (event->page->part == NULL || event->payload == NULL)
		return;
	for (int i = 0; i < OUTBOX_FORMATS; i++)
		if (event->body[i].data == event->payload)
			return;				/* it is the body */
	pfree(event->content_type ? event->payload - VARHDRSZ : event->payload);
	event->payload = NULL;
	outbox_page_account(event->page);
}
