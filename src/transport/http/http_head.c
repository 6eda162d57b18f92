/*
 * http_head.c
 *	  Owns the reading of an answer's head: its status, the headers that have a
 *	  meaning, and the limits on its size.
 *
 * libcurl passes whole lines, as the receiver has sent them.  Nothing here needs a
 * worker or the network.
 */
#include "transport/http/http_internal.h"

#include <ctype.h>
#include <strings.h>

/*
 * Limits of an answer's head, which a receiver sends before the body.  They include
 * interim answers and trailers.
 */
#define HEAD_BYTES_MAX (64 * 1024)
#define HEAD_LINES_MAX 1000

/*
 * The status in "HTTP/1.1 204 No Content".  0: there is no number, 1000: it is too
 * large.
 */
static int
status_of(const char *line, size_t len)
{
	int	   status = 0;
	size_t i = 0;

	while (i < len && line[i] != ' ')
		i++;
	for (i++; i < len && line[i] >= '0' && line[i] <= '9'; i++)
		status = Min(status * 10 + (line[i] - '0'), 1000);
	return status;
}

/* The receiver allows the origin, or any, and perhaps a number of requests in a minute. */
static void
take_permission(OutboxHead *head, const char *line, size_t len)
{
	size_t		vlen;
	const char *value = outbox_header_value(line, len, "webhook-allowed-origin", &vlen);

	if (value)
		head->allowed = (vlen == 1 && value[0] == '*') ||
			(vlen == strlen(head->origin) && strncasecmp(value, head->origin, vlen) == 0);
	value = outbox_header_value(line, len, "webhook-allowed-rate", &vlen);
	if (value)
	{
		int64 rate = 0;

		for (size_t i = 0; i < vlen && value[i] >= '0' && value[i] <= '9'; i++)
			rate = Min(rate * 10 + (value[i] - '0'), 60000000);
		head->allowed_rate = rate / 60.0;
	}
}

/* ------------------------------------------------------- the lines that are kept */

#define VALUE_KEPT 256 /* bytes */
#define ROOM_FOR_END 32

static void
keep(OutboxHead *head, const char *text, size_t len)
{
	memcpy(head->text + head->text_len, text, len);
	head->text_len += len;
}

/* Of a cookie, which logs somebody in, only the name of its header is kept. */
static void
keep_line(OutboxHead *head, const char *line, size_t len)
{
	const char *colon = memchr(line, ':', len);
	size_t		name_len = colon ? colon - line : 0;
	const char *value;
	size_t		value_len;
	bool		cut;

	/* A line without a name continues the one before. */
	if (name_len == 0 || line[0] == ' ' || line[0] == '\t')
		return;
	value = outbox_header_trimmed(colon + 1, len - name_len - 1, &value_len);
	cut = value_len > VALUE_KEPT;
	value_len = Min(value_len, VALUE_KEPT);
	if (strncasecmp(line, "set-cookie", 10) == 0)
	{
		value = OUTBOX_LEFT_OUT;
		value_len = strlen(OUTBOX_LEFT_OUT);
		cut = false;
	}
	if (head->left_out > 0 ||
		head->text_len + name_len + value_len + sizeof(": ...\n") >
			sizeof(head->text) - ROOM_FOR_END)
	{
		head->left_out++;
		return;
	}
	for (size_t i = 0; i < name_len; i++)
		head->text[head->text_len++] = (char) tolower((unsigned char) line[i]);
	keep(head, ": ", 2);
	keep(head, value, value_len);
	keep(head, "...\n", 4);
	if (!cut)
	{
		head->text_len -= 4;
		keep(head, "\n", 1);
	}
}

const char *
outbox_head_kept(OutboxHead *head, size_t *len)
{
	if (head->left_out > 0)
		head->text_len += snprintf(head->text + head->text_len, ROOM_FOR_END,
								   "...: %d more\n", head->left_out);
	head->left_out = 0;
	*len = head->text_len > 0 ? head->text_len - 1 : 0;
	return head->text;
}

/* -------------------------------------------------------------------- one line */

/*
 * Takes one line, its end included.  Its meaning is stored in 'head' and 'outcome'
 * until the head is complete.  Later lines are trailers, and are only counted.  So is a
 * part of a line: the connection has ended in it.
 */
OutboxHeadState
outbox_head_line(OutboxHead *head, OutboxOutcome *outcome, const char *line, size_t len,
				 int64 now)
{
	const char *value;
	size_t		vlen;

	head->bytes += len;
	if (head->bytes > HEAD_BYTES_MAX || ++head->lines > HEAD_LINES_MAX)
		return head->state = OUTBOX_HEAD_OVERSIZED;
	if (head->state == OUTBOX_HEAD_COMPLETE || len == 0 || line[len - 1] != '\n')
		return head->state;

	if (head->state == OUTBOX_HEAD_STATUS)
	{
		head->status = status_of(line, len);
		head->keeps = head->status >= 200 && head->status <= 299 ? head->keeps_good :
																   head->keeps_bad;
		head->text_len = 0;
		head->left_out = 0;
		return head->state = OUTBOX_HEAD_LINES;
	}

	if (head->keeps && line[0] != '\r' && line[0] != '\n')
		keep_line(head, line, len);
	switch (line[0])
	{
		case '\r':
		case '\n':
			if (head->status >= 200)
				return head->state = OUTBOX_HEAD_COMPLETE;
			/* The headers of an interim answer mean nothing. */
			outcome->retry_after = -1;
			head->disable = head->abort_message = false;
			head->encoded = head->allowed = false;
			head->allowed_rate = 0;
			return head->state = OUTBOX_HEAD_STATUS;
		case 'C':
		case 'c':
			value = outbox_header_value(line, len, "content-encoding", &vlen);
			if (value && vlen > 0 &&
				!(vlen == 8 && strncasecmp(value, "identity", 8) == 0))
				head->encoded = true;
			break;
		case 'R':
		case 'r':
			value = outbox_header_value(line, len, "retry-after", &vlen);
			if (value)
				outcome->retry_after = outbox_http_retry_after(value, vlen, now);
			break;
		case 'T':
		case 't':
			if (outbox_header_is_coding(line, len))
				return head->state = OUTBOX_HEAD_CODED;
			break;
		case 'W':
		case 'w':
			value = outbox_header_value(line, len, "webhook-delivery", &vlen);
			if (value && vlen == 7 && strncasecmp(value, "disable", 7) == 0)
				head->disable = true;
			else if (value && vlen == 13 && strncasecmp(value, "abort-message", 13) == 0)
				head->abort_message = true;
			if (head->origin)
				take_permission(head, line, len);
			break;
	}
	return head->state;
}
