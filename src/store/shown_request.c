/*
 * shown_request.c
 *	  Owns how SQL shows a request as it was sent or will be, without its secrets.
 *
 * It is made by the functions that the worker makes it with, of the endpoint's present
 * settings.  One key that is hidden signs, whether one signed then or two did, and each
 * header of the endpoint itself has a word in place of its value.
 */
#include "base/outbox.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"

#include "base/query.h"
#include "base/version.h"
#include "format/batch_body.h"
#include "format/cloudevents.h"
#include "log/event_stamp.h"
#include "log/page.h"
#include "store/endpoint_options.h"
#include "store/endpoint_settings.h"
#include "transport/http/http.h"
#include "transport/sinks.h"

#define BATCH_ID "(id of the batch)"
#define SHOWN_COLUMNS 5

typedef struct Shown
{
	const char	  *line; /* NULL: the transport has none */
	const char	  *body;
	size_t		   body_len;
	const char	  *problem; /* why it can never be sent (NULL: it can) */
	OutboxHeaders *headers;
} Shown;

/* All that a request depends on, but the event. */
typedef struct Sender
{
	OutboxTarget		target;
	OutboxRequestConfig config;
	OutboxProfile		profile;
	int					batch_size;
} Sender;

/* Returns the problem with the endpoint's settings; NULL: none. */
static const char *
read_sender(Sender *s, int32 endpoint_id)
{
	char	   *format;
	Jsonb	   *headers, *config;
	ArrayType  *credentials;
	char	  **names;
	const char *problem = NULL;
	const char *hint;

	if (outbox_plan_run("SELECT outbox.shown(s.endpoint_id, s.url), s.format, s.headers,"
						" s.config, s.credentials, s.batch_size"
						" FROM outbox.endpoint_settings s"
						" WHERE s.endpoint_id = $1",
						arg_int4(endpoint_id)) == 0)
		return "the endpoint was dropped";
	outbox_read_row(0, into_text(&s->target.url), into_text(&format),
					into_varlena(JSONBOID, &headers), into_varlena(JSONBOID, &config),
					into_varlena(TEXTARRAYOID, &credentials), into_int4(&s->batch_size));
	s->config.format = outbox_endpoint_format(format);
	if (headers)
		s->config.nheaders = outbox_endpoint_headers(headers, OUTBOX_LEFT_OUT,
													 &s->config.header_names,
													 &s->config.header_values);
	s->target.config = outbox_options_read(config, &s->target.nconfig, NULL);
	if (credentials)
	{
		names = outbox_text_array(credentials, &s->target.ncredentials);
		s->target.credentials = palloc0(sizeof(OutboxOption) *
										Max(s->target.ncredentials, 1));
		for (int i = 0; i < s->target.ncredentials; i++)
			s->target.credentials[i].name = names[i];
	}
	s->config.nkeys = 1;
	s->config.keys = palloc0(sizeof(OutboxKey));
	s->config.keys[0].len = OUTBOX_KEY_HIDDEN;
	s->config.shape = outbox_options_take_shape(s->target.config, &s->target.nconfig,
												&problem, &hint);
	s->config.profile = &outbox_profile_standard;
	s->target.transport = outbox_sinks_in_session(s->target.url, &hint);
	if (s->target.transport == NULL)
		return hint;
	if (problem == NULL && s->target.transport == &outbox_http_transport)
	{
		problem = outbox_http_profile(&s->target, &s->profile, &hint);
		s->config.profile = &s->profile;
	}
	return problem;
}

/* The event, in a page of its own; NULL: it is gone, or forgotten. */
static OutboxEvent *
read_event(int64 seq, const pg_uuid_t *id)
{
	Datum	  values[Natts_events];
	bool	  nulls[Natts_events];
	OutboxRow row;

	if (outbox_plan_run("SELECT " OUTBOX_EVENT_COLUMNS " FROM outbox.all_events"
						" WHERE seq = $1 AND id = $2 AND NOT forgotten",
						arg_int8(seq), arg_datum(UUIDOID, UUIDPGetDatum(id))) == 0)
		return NULL;
	heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, values, nulls);
	row = outbox_row_make(values, nulls, outbox_row_xid(values));
	outbox_cloudevents_init();
	/* Its memory is that of the call. */
	outbox_page_init(CurrentMemoryContext);
	return outbox_page_add(outbox_page_create(NULL, NULL), &row, true);
}

/* A batch is shown with this one event. */
static void
show_batch(Shown *shown, const Sender *s, OutboxEvent *event, int attempt, int64 at)
{
	OutboxBatchBody batch;
	char			id[OUTBOX_ID_SIZE];
	bool			full = false;

	outbox_batch_body_init(&batch, CurrentMemoryContext, s->config.format, 1);
	shown->problem = outbox_batch_body_append(&batch, event, &full);
	if (shown->problem)
		return;
	outbox_batch_body_complete(&batch, id);
	shown->body = batch.bytes;
	shown->body_len = batch.len;
	shown->problem = outbox_request_batch_headers(shown->headers, BATCH_ID, &s->config,
												  attempt, at, batch.bytes, batch.len);
}

static void
show(Shown *shown, const Sender *s, OutboxEvent *event, int attempt,
	 OutboxRedelivery redelivery, int64 at)
{
	bool gone;
	bool is_webhook = s->target.transport == &outbox_http_transport;

	event = outbox_shape_load(event, &s->config.shape, s->config.format, 0, &gone,
							  &shown->problem);
	if (shown->problem)
		return;
	if (s->batch_size > 1)
		show_batch(shown, s, event, attempt, at);
	else
	{
		shown->body = outbox_request_body(event, s->config.format, &shown->body_len);
		shown->problem = is_webhook ?
			outbox_request_headers(shown->headers, event, &s->config, attempt, redelivery,
								   at, shown->body, shown->body_len) :
			outbox_request_message_headers(shown->headers, event, &s->config, attempt,
										   redelivery,
										   s->target.transport->attribute_prefix,
										   shown->body);
	}
	if (shown->problem == NULL && is_webhook)
		shown->line = outbox_http_shown(&s->target, shown->headers, shown->body_len);
}

static char *
header_text(const OutboxHeaders *h)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < h->nlines; i++)
	{
		const OutboxHeaderLine *l = &h->lines[i];
		const char			   *name = h->buf + l->start;

		appendBinaryStringInfo(&text, "\n", text.len > 0);
		appendBinaryStringInfo(&text, name, (int) l->name_len);
		appendStringInfoString(&text, ": ");
		if (l->value_len > 0)
			appendBinaryStringInfo(&text, name + l->name_len + strlen(": "),
								   (int) l->value_len);
	}
	return pg_any_to_server(text.data, text.len, PG_UTF8);
}

/* True if the body is text.  Bytes of users may be no text of this database. */
static bool
is_text(const Sender *s, const OutboxEvent *event, const Shown *shown)
{
	return s->batch_size > 1 || event->content_type == NULL || s->config.shape.text ||
		OUTBOX_BODY_OF(s->config.format) != OUTBOX_FORMAT_RAW ||
		(GetDatabaseEncoding() == PG_UTF8 &&
		 pg_verify_mbstr(PG_UTF8, shown->body, (int) shown->body_len, true));
}

static void
set_text(Datum *value, bool *null, const char *text)
{
	*null = text == NULL;
	*value = *null ? (Datum) 0 : CStringGetTextDatum(text);
}

static void
set_body(Datum *values, bool *nulls, const Sender *s, const OutboxEvent *event,
		 const Shown *shown)
{
	if (is_text(s, event, shown))
		set_text(&values[0], &nulls[0],
				 pg_any_to_server(pnstrdup(shown->body, shown->body_len),
								  (int) shown->body_len, PG_UTF8));
	else
	{
		nulls[1] = false;
		values[1] = PointerGetDatum(
			cstring_to_text_with_len(shown->body, (int) shown->body_len));
	}
}

/*
 * shown_request(endpoint_id int4, seq int8, id uuid, attempt int4, redelivery int4,
 * at timestamptz): line, headers, body, bytes and problem.
 */
OUTBOX_FUNCTION(outbox_shown_request_1_0, 6)
{
	static OutboxHeaders headers;
	Sender				 s = {0};
	Shown				 shown = {.headers = &headers};
	OutboxEvent			*event = NULL;
	Datum				 values[SHOWN_COLUMNS] = {0};
	bool				 nulls[SHOWN_COLUMNS];
	TupleDesc			 desc;
	HeapTupleHeader		 result;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	memset(nulls, true, sizeof(nulls));
	SPI_connect();
	outbox_headers_reset(&headers);
	shown.problem = read_sender(&s, PG_GETARG_INT32(0));
	if (shown.problem == NULL)
		event = read_event(PG_GETARG_INT64(1), PG_GETARG_UUID_P(2));
	if (event)
		show(&shown, &s, event, PG_GETARG_INT32(3), (OutboxRedelivery) PG_GETARG_INT32(4),
			 timestamptz_to_time_t(PG_GETARG_TIMESTAMPTZ(5)));
	else if (shown.problem == NULL)
		shown.problem = "the event is gone";
	if (shown.problem == NULL)
	{
		set_text(&values[0], &nulls[0], shown.line);
		set_text(&values[1], &nulls[1], header_text(&headers));
		set_body(&values[2], &nulls[2], &s, event, &shown);
	}
	set_text(&values[4], &nulls[4], shown.problem);
	result = SPI_returntuple(heap_form_tuple(desc, values, nulls), desc);
	SPI_finish();
	return HeapTupleHeaderGetDatum(result);
}
