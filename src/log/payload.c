/*
 * payload.c
 *	  Owns how a payload that was left in the log is read into memory, and freed again.
 *
 * An event without its payload is small.  So each endpoint may have one, whatever memory
 * there is (window.c), and its payload waits for memory only when it is to be sent.
 */
#include "base/outbox.h"

#include "log/page.h"
#include "log/payload.h"
#include "log/step.h"
#include "log/transaction.h"

bool outbox_payload_readable = true;
bool outbox_payload_wanted;
void (*outbox_payload_before_large)(void);

/* Bytes of a payload with which a request takes longer than several small ones. */
#define LARGE (64 * 1024)

static bool
has_body(const OutboxEvent *event, OutboxFormat format)
{
	return format != OUTBOX_PAYLOAD_ITSELF &&
		event->body[OUTBOX_BODY_OF(format)].data != NULL;
}

/*
 * The event with the payload or body for a request: itself or its copy.  NULL: it must
 * be read.
 */
static OutboxEvent *
at_hand(const OutboxEvent *event, OutboxFormat format)
{
	if (event->payload)
		return unconstify(OutboxEvent *, event);
	return event->whole && (event->whole->payload || has_body(event->whole, format)) ?
		event->whole :
		NULL;
}

size_t
outbox_payload_cost(const OutboxEvent *event, OutboxFormat format)
{
	const OutboxEvent *from = at_hand(event, format);
	size_t			   len = event->payload_len;
	size_t			   body = len;

	if (from && has_body(from, format))
		return 0;
	if (event->content_type)
		body = OUTBOX_BODY_OF(format) == OUTBOX_FORMAT_RAW ? 0 : len / 3 * 4;
	if (from)
		return body;
	return event->content_type ? len + body : OUTBOX_JSON_READING * len;
}

typedef struct Bringing
{
	const OutboxEvent *event;
	OutboxEvent		  *whole;
	bool			   begun;
} Bringing;

static void
bring_whole(void *arg)
{
	Bringing *b = arg;

	b->begun = outbox_txn_begin(false);
	if (!b->begun)
		return;
	b->whole = outbox_fetch_whole(b->event);
	outbox_txn_commit();
}

static void
before_use(const OutboxEvent *event)
{
	if (event->payload_len > LARGE && outbox_payload_before_large)
		outbox_payload_before_large();
}

/*
 * The copy is read by the number of the event.  It is the same event only if it has
 * the same id.  Its transaction was durable before, so it waits for no more WAL than
 * the event does.
 */
OutboxEvent *
outbox_payload_load(OutboxEvent *event, OutboxFormat format, int32 endpoint_id,
					bool *gone)
{
	OutboxEvent	   *whole = at_hand(event, format);
	Bringing		b = {.event = event};
	OutboxStepError failure;

	*gone = false;
	if (whole)
	{
		before_use(event);
		whole->page->refs++;
		return whole;
	}
	if (!outbox_payload_readable)
	{
		outbox_payload_wanted = true;
		return NULL;
	}
	if (outbox_step_held(OUTBOX_STEP_READ, 0) ||
		outbox_step_held(OUTBOX_STEP_READ, endpoint_id))
		return NULL;
	before_use(event);
	if (!outbox_step_try(bring_whole, &b, &failure))
	{
		if (b.whole)
			outbox_page_unref(b.whole->page);

		/*
		 * A damaged row counts as gone.  After any other error, reading is tried
		 * again.
		 */
		*gone = failure.sqlerrcode == ERRCODE_DATA_CORRUPTED ||
			ERRCODE_TO_CATEGORY(failure.sqlerrcode) == ERRCODE_DATA_EXCEPTION;
		if (!*gone)
			outbox_step_hold(OUTBOX_STEP_READ, endpoint_id, &failure);
		return NULL;
	}
	if (!b.begun)
		return NULL;
	whole = b.whole;
	if (whole && (whole->unreadable || whole->forgotten))
	{
		/* It was whole when the event was read.  The end of a forgotten one is forget.c's. */
		*gone = whole->unreadable;
		outbox_page_unref(whole->page);
		return NULL;
	}
	*gone = whole == NULL;
	if (whole)
	{
		event->payload_len = whole->payload_len; /* in the log it is that of the jsonb */
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
			return; /* the payload is also the body */
	pfree(event->content_type ? event->payload - VARHDRSZ : event->payload);
	event->payload = NULL;
	outbox_page_account(event->page);
}
