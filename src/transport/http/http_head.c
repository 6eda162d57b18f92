/*
 * http_head.c
 *	  Owns the reading of an answer's head: its status, the headers that have a
 *	  meaning, and the limits on its size.
 *
 * libcurl passes whole lines, as the receiver has sent them.  Nothing here needs a
 * worker or the network.
 */
#include "transport/http/http_internal.h"

#include <strings.h>

/*
 * Limits of an answer's head, which a receiver sends before the body.  They include
 * interim answers and trailers.
 */
#define HEAD_BYTES_MAX (64 * 1024)
#define HEAD_LINES_MAX 1000

/* The value of a header line if it has that name, otherwise NULL. */
static const char *
header_value(const char *line, size_t len, const char *name, size_t *value_len)
{
	size_t namelen = strlen(name);

	if (len <= namelen || line[namelen] != ':' || strncasecmp(line, name, namelen) != 0)
		return NULL;
	line += namelen + 1;
	len -= namelen + 1;
	while (len > 0 && (*line == ' ' || *line == '\t'))
	{
		line++;
		len--;
	}
	while (len > 0 &&
		   (line[len - 1] == ' ' || line[len - 1] == '\t' || line[len - 1] == '\r' ||
			line[len - 1] == '\n'))
		len--;
	*value_len = len;
	return line;
}

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
	const char *value = header_value(line, len, "webhook-allowed-origin", &vlen);

	if (value)
		head->allowed = (vlen == 1 && value[0] == '*') ||
			(vlen == strlen(head->origin) && strncasecmp(value, head->origin, vlen) == 0);
	value = header_value(line, len, "webhook-allowed-rate", &vlen);
	if (value)
	{
		int64 rate = 0;

		for (size_t i = 0; i < vlen && value[i] >= '0' && value[i] <= '9'; i++)
			rate = Min(rate * 10 + (value[i] - '0'), 60000000);
		head->allowed_rate = rate / 60.0;
	}
}

/*
 * Takes one line, its end included.  Its meaning is stored in 'head' and 'outcome'
 * until the head is complete.  Later lines are trailers, and are only counted.
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
	if (head->state == OUTBOX_HEAD_COMPLETE || len == 0)
		return head->state;

	if (head->state == OUTBOX_HEAD_STATUS)
	{
		head->status = status_of(line, len);
		return head->state = OUTBOX_HEAD_LINES;
	}

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
			value = header_value(line, len, "content-encoding", &vlen);
			if (value && vlen > 0 &&
				!(vlen == 8 && strncasecmp(value, "identity", 8) == 0))
				head->encoded = true;
			break;
		case 'R':
		case 'r':
			value = header_value(line, len, "retry-after", &vlen);
			if (value)
				outcome->retry_after = outbox_http_retry_after(value, vlen, now);
			break;
		case 'T':
		case 't':
			/* libcurl would decode it unasked, and a little can be decoded for ever. */
			value = header_value(line, len, "transfer-encoding", &vlen);
			if (value && !(vlen == 7 && strncasecmp(value, "chunked", 7) == 0))
				return head->state = OUTBOX_HEAD_CODED;
			break;
		case 'W':
		case 'w':
			value = header_value(line, len, "webhook-delivery", &vlen);
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
