/*
 * http_answer.c
 *	  Owns the meaning of an answer, and which parts of it and of its time are kept.
 */
#include "base/settings.h"
#include "transport/http/http_internal.h"

/* Any other status, with the header of Standard Webhooks. */
static void
take_refusal(OutboxTransfer *t)
{
	OutboxOutcome *o = &t->outcome;

	switch (o->status)
	{
		case 400:
		case 409:
		case 413:
		case 415:
		case 422:
			o->event_at_fault = true; /* 401, 403, 404 and 407 are about the endpoint */
			break;
		case 410:
			o->result = OUTBOX_RESULT_DISABLE;
			o->why_disabled = "the receiver answered 410 Gone";
			break;
		case 429:
			o->slow_down = o->no_event_at_fault = true;
			break;
		case 502:
		case 503:
		case 504:
			o->slow_down = true;
			break;
	}
	if (o->result == OUTBOX_RESULT_DISABLE)
		return;
	if (t->head.disable)
	{
		o->result = OUTBOX_RESULT_DISABLE;
		o->why_disabled = "the receiver answered webhook-delivery: disable";
	}
	else if (t->head.abort_message)
		o->result = OUTBOX_RESULT_ABORT;
}

/* A 2xx whose body is part of the outcome.  Checks that the body is complete. */
static void
take_whole(OutboxTransfer *t, CURLcode code)
{
	OutboxOutcome *o = &t->outcome;

	o->result = OUTBOX_RESULT_UNKNOWN;
	if (outbox_http_was_held_up(t, code))
		return;
	if (t->answer_len > t->whole_answer)
		snprintf(o->error, sizeof(o->error),
				 "the answer to the batch is longer than %zu bytes", t->whole_answer);
	else if (code != CURLE_OK)
		snprintf(o->error, sizeof(o->error), "the answer to the batch was cut off: %s",
				 curl_easy_strerror(code));
	else if (t->head.encoded)
		snprintf(o->error, sizeof(o->error),
				 "the answer to the batch is compressed, which was not asked for");
	else
	{
		o->result = OUTBOX_RESULT_DELIVERED;
		o->answer = t->answer;
		o->answer_len = t->answer_len;
	}
}

void
outbox_http_take_answer(OutboxTransfer *t, CURLcode code)
{
	OutboxOutcome *o = &t->outcome;
	long		   version = 0;

	if (t->set_version == CURL_HTTP_VERSION_2TLS)
		(void) curl_easy_getinfo(t->easy, CURLINFO_HTTP_VERSION, &version);
	o->http_2 = version == CURL_HTTP_VERSION_2_0;

	/* An error after the headers changes nothing. */
	o->status = t->head.status;
	if (o->status >= 200 && o->status <= 299)
	{
		o->result = OUTBOX_RESULT_DELIVERED;
		if (t->whole_answer)
			take_whole(t, code);
	}
	else
	{
		snprintf(o->error, sizeof(o->error), "the receiver answered %d%s", o->status,
				 o->status >= 300 && o->status < 400 ?
					 ", and redirects are not followed" :
					 "");
		take_refusal(t);
	}
}

/* libcurl counts each from the beginning of the request, which a reused connection has too. */
static double
time_of(OutboxTransfer *t, CURLINFO part)
{
	curl_off_t us = 0;

	(void) curl_easy_getinfo(t->easy, part, &us);
	return us / 1000.0;
}

#define SHORTEST_SECRET 8
#define BEGINNING_OF_SECRET 16 /* the rest may have been cut off */

/* Puts stars in place of the secret, also where the text has its beginning only. */
static void
leave_out(char *text, size_t len, const char *secret, size_t whole)
{
	const size_t least = Min(whole, BEGINNING_OF_SECRET);
	char		*end = text + len;

	if (len == 0 || whole < SHORTEST_SECRET)
		return;
	while ((text = memmem(text, end - text, secret, least)) != NULL)
		for (size_t i = 0; text < end && i < whole && *text == secret[i]; i++)
			*text++ = '*';
}

/* A receiver may repeat the request, and a role that reads answers reads no credentials. */
static void
leave_out_credentials(OutboxTransfer *t)
{
	static const char name[] = "Authorization";

	for (int i = 0; i < t->headers.nlines; i++)
	{
		const OutboxHeaderLine *line = &t->headers.lines[i];
		const char			   *start = t->headers.buf + line->start;
		const char			   *value = start + line->name_len + 2;
		const char			   *end = value + line->value_len;
		const char			   *space;

		if (line->name_len != strlen(name) || strncasecmp(start, name, strlen(name)) != 0)
			continue;
		space = memchr(value, ' ', end - value); /* behind Basic or Bearer */
		value = space ? space + 1 : value;
		leave_out(t->head.text, t->head.text_len, value, end - value);
		leave_out(t->answer, Min(t->answer_len, t->answer_size), value, end - value);
	}
}

void
outbox_http_keep_parts(OutboxTransfer *t)
{
	OutboxOutcome *o = &t->outcome;
	double		   connected;
	double		   secured;
	double		   begun;
	double		   answered;

	if (o->result == OUTBOX_RESULT_DELIVERED && !t->kept_answer && !t->whole_answer)
		return;
	connected = t->tried ? time_of(t, CURLINFO_CONNECT_TIME_T) : 0;
	secured = t->tried ? time_of(t, CURLINFO_APPCONNECT_TIME_T) : 0;
	begun = time_of(t, CURLINFO_PRETRANSFER_TIME_T);
	answered = time_of(t, CURLINFO_STARTTRANSFER_TIME_T);
	t->times.lookup = t->tried && t->lookup_host[0] ? t->lookup_took : -1;
	t->times.connect = connected > 0 ?
		connected - time_of(t, CURLINFO_NAMELOOKUP_TIME_T) :
		-1;
	t->times.tls = secured > 0 ? secured - connected : -1;
	/* libcurl notes the end of a connection as a beginning of the answer, too. */
	t->times.first_byte = t->head.bytes > 0 ? answered - begun : -1;
	o->times = &t->times;
	leave_out_credentials(t);
	o->head = outbox_head_kept(&t->head, &o->head_len);
	o->body = t->answer;
	o->body_len = Min(t->answer_len, (size_t) outbox_log_answer_size);
}

void
outbox_http_ask(OutboxTransfer *t, const char *origin, OutboxDone answered)
{
	t->origin = origin;
	t->done = answered;
}

bool
outbox_http_allows(const OutboxTransfer *t, double *rate)
{
	*rate = t->head.allowed_rate;
	return t->head.allowed;
}
