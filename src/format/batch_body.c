/*
 * batch_body.c
 *	  Turns the events of a batch into its body and its id, as doc/wire.md says.
 *
 * Nothing in them depends on the attempt.  The same events make the same bytes and the
 * same id, in whatever order they were appended.
 */
#include "base/outbox.h"

#include "base/encoding.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "base/table_rows.h"
#include "format/batch_body.h"
#include "format/cloudevents.h"
#include "format/request.h"
#include "format/signature.h"

/* Bytes of an element's names, punctuation, id and time. */
#define ELEMENT_FIXED (250 + OUTBOX_TIMESTAMP_SIZE)

static char *
reserve(OutboxBatchBody *b, size_t len)
{
	if (b->size - b->len < len)
	{
		size_t size = Max(b->size * 2, b->len + len);

		b->bytes = b->bytes ? repalloc_huge(b->bytes, size) :
							  MemoryContextAllocHuge(b->cxt, size);
		outbox_memory_account(&b->size, size);
	}
	return b->bytes + b->len;
}

void
outbox_batch_body_init(OutboxBatchBody *b, MemoryContext cxt, OutboxFormat format,
					   int max)
{
	memset(b, 0, sizeof(*b));
	b->cxt = cxt;
	b->scratch = AllocSetContextCreate(cxt, "outbox batch event", ALLOCSET_DEFAULT_SIZES);
	b->format = format;
	b->elements = MemoryContextAlloc(cxt, sizeof(OutboxBatchElement) * max);
}

void
outbox_batch_body_forget(OutboxBatchBody *b)
{
	outbox_memory_account(&b->size, 0);
}

/* {"id","type","timestamp","topic","key","headers","tenant","data"} */
static bool
append_standard(OutboxBatchBody *b, OutboxEvent *event)
{
	char	  *type = event->type ? event->type : event->topic;
	char	  *key = event->key;
	char	  *tenant = event->tenant;
	char	  *headers = NULL;
	size_t	   type_len = strlen(type);
	size_t	   topic_len = strlen(event->topic);
	size_t	   key_len = key ? strlen(key) : 0;
	size_t	   tenant_len = tenant ? strlen(tenant) : 0;
	size_t	   headers_len = 0;
	OutboxData data;
	char	  *p;

	if (event->headers)
	{
		StringInfoData text;

		initStringInfo(&text);
		outbox_json_text(&text, event->headers);
		headers_len = text.len;
		headers = outbox_to_utf8(text.data, &headers_len);
	}
	type = outbox_to_utf8(type, &type_len);
	key = key ? outbox_to_utf8(key, &key_len) : NULL;
	tenant = tenant ? outbox_to_utf8(tenant, &tenant_len) : NULL;
	if (type == NULL || (event->key && key == NULL) ||
		(event->tenant && tenant == NULL) || (event->headers && headers == NULL) ||
		!outbox_data_prepare(&data, event))
		return false;

	p = reserve(b,
				ELEMENT_FIXED + 6 * (type_len + topic_len + key_len + tenant_len) +
					headers_len + data.size);
	p = outbox_put_literal(p, "{\"id\":\"");
	p = outbox_put(p, event->id_text, strlen(event->id_text));
	p = outbox_put_literal(p, "\",\"type\":");
	p = outbox_put_json_string(p, type, type_len);
	p = outbox_put_literal(p, ",\"timestamp\":\"");
	p = outbox_put_timestamp(p, event->created_at);
	p = outbox_put_literal(p, "\",\"topic\":");
	p = outbox_put_json_string(p, event->topic, topic_len);
	p = outbox_put_literal(p, ",\"key\":");
	p = key ? outbox_put_json_string(p, key, key_len) : outbox_put_literal(p, "null");
	p = outbox_put_literal(p, ",\"headers\":");
	p = headers ? outbox_put(p, headers, headers_len) : outbox_put_literal(p, "null");
	if (tenant)
	{
		p = outbox_put_literal(p, ",\"tenant\":");
		p = outbox_put_json_string(p, tenant, tenant_len);
	}
	*p++ = ',';
	p = outbox_data_put(p, &data);
	*p++ = '}';
	b->len = p - b->bytes;
	return true;
}

static bool
append_cloudevent(OutboxBatchBody *b, OutboxEvent *event)
{
	char  *body;
	size_t len;

	if (!outbox_cloudevents_body(event, &len, &body))
		return false;
	b->len = outbox_put(reserve(b, len), body, len) - b->bytes;
	return true;
}

const char *
outbox_batch_body_append(OutboxBatchBody *b, OutboxEvent *event, bool *full)
{
	const char		   *problem = outbox_request_problem(event);
	OutboxBatchElement *e = &b->elements[b->n];
	size_t				before = b->len;
	MemoryContext		old;
	bool				appended;

	*full = false;
	if (problem)
		return problem;

	/* Before the element comes the bracket, or the comma after the last element. */
	*reserve(b, 1) = b->n == 0 ? '[' : ',';
	b->len++;
	e->seq = event->seq;
	e->id = event->id;
	e->start = b->len;
	old = MemoryContextSwitchTo(b->scratch);
	appended = b->format == OUTBOX_FORMAT_CLOUDEVENTS ? append_cloudevent(b, event) :
														append_standard(b, event);
	MemoryContextSwitchTo(old);
	MemoryContextReset(b->scratch);
	e->len = b->len - e->start;

	*full = appended && b->n > 0 && b->len + 1 > OUTBOX_BATCH_BYTES;
	if (*full || !appended)
		b->len = before;
	else
		b->n++;
	return appended ? NULL : OUTBOX_NO_UTF8;
}

/* Puts the elements in the order of the log, whatever order they were appended in. */
static void
put_in_order(OutboxBatchBody *b)
{
	bool  sorted = true;
	char *bytes;
	char *p;

	for (int i = 1; i < b->n && sorted; i++)
		sorted = b->elements[i - 1].seq < b->elements[i].seq;
	if (sorted)
		return;

	qsort(b->elements, b->n, sizeof(OutboxBatchElement), outbox_compare_int8);
	p = bytes = MemoryContextAllocHuge(b->cxt, b->len);
	for (int i = 0; i < b->n; i++)
	{
		OutboxBatchElement *e = &b->elements[i];

		*p++ = i == 0 ? '[' : ',';
		p = outbox_put(p, b->bytes + e->start, e->len);
		e->start = p - bytes - e->len;
	}
	pfree(b->bytes);
	b->bytes = bytes;
	outbox_memory_account(&b->size, b->len);
}

/* Writes a UUID of version 8 (RFC 9562), made of the hash of the events' ids. */
static void
make_id(OutboxBatchBody *b, char *text)
{
	pg_uuid_t *ids = MemoryContextAlloc(b->scratch, sizeof(pg_uuid_t) * b->n);
	uint8	   digest[32];
	pg_uuid_t  id;

	for (int i = 0; i < b->n; i++)
		ids[i] = b->elements[i].id;
	outbox_sha256(ids, sizeof(pg_uuid_t) * b->n, digest);
	memcpy(id.data, digest, UUID_LEN);
	id.data[6] = (id.data[6] & 0x0f) | 0x80;
	id.data[8] = (id.data[8] & 0x3f) | 0x80;
	outbox_uuid_text(&id, text);
	MemoryContextReset(b->scratch);
}

void
outbox_batch_body_complete(OutboxBatchBody *b, char *id)
{
	*reserve(b, 1) = ']';
	b->len++;
	put_in_order(b);
	b->bytes[b->len - 1] = ']';
	make_id(b, id);
}
