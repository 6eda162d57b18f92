/*
 * header_lines.c
 *	  Owns the header lines of a request, as text.
 */
#include "format/header_lines.h"

#include <stdlib.h>

void
outbox_headers_reset(OutboxHeaders *h)
{
	h->len = 0;
	h->n = h->nlines = 0;
	h->query = 0;
	h->ours = false;
}

/*
 * Makes space for 'len' more bytes and one more line.  Returns false if memory runs
 * out.
 */
static bool
headers_reserve(OutboxHeaders *h, size_t len)
{
	if (h->nlines >= h->max)
	{
		int				  max = h->max ? h->max * 2 : 32;
		uint32			 *start = realloc(h->start, max * sizeof(uint32));
		OutboxHeaderLine *lines = realloc(h->lines, max * sizeof(OutboxHeaderLine));

		if (start)
			h->start = start;
		if (lines)
			h->lines = lines;
		if (start == NULL || lines == NULL)
			return false;
		h->max = max;
	}
	if (len > h->size - h->len)
	{
		size_t size = h->size ? h->size : 1024;
		char  *buf;

		while (size - h->len < len)
		{
			if (size > PG_UINT32_MAX / 2)
				return false;
			size *= 2;
		}
		buf = outbox_headers_realloc(h->buf, h->len, size);
		if (buf == NULL)
			return false;
		h->buf = buf;
		h->size = size;
	}
	return true;
}

/*
 * True for headers that libcurl does not know.  For each header that libcurl would add
 * by itself, it searches the whole list, more than a dozen times a request.  So
 * headers that it cannot be searching share one entry, with a line each.
 */
static bool
is_ours(const char *name, size_t len)
{
#define BEGINS_WITH(s) (len >= sizeof(s) - 1 && memcmp(name, s, sizeof(s) - 1) == 0)
	return BEGINS_WITH("webhook-") || BEGINS_WITH("outbox-") || BEGINS_WITH("ce-") ||
		strcmp(name, "Idempotency-Key") == 0;
#undef BEGINS_WITH
}

bool
outbox_headers_put(OutboxHeaders *h, const char *name, size_t name_len, const char *value,
				   size_t len)
{
	bool  ours = is_ours(name, name_len);
	char *p;

	while (len > 0 && (*value == ' ' || *value == '\t'))
	{
		value++;
		len--;
	}
	if (len > PG_UINT32_MAX / 4 || name_len > PG_UINT32_MAX / 4 ||
		!headers_reserve(h, name_len + len + 4))
		return false;

	p = h->buf + h->len;
	if (h->ours && ours && len > 0)
	{
		p[-1] = '\r';
		*p++ = '\n';
	}
	else
		h->start[h->n++] = (uint32) h->len;
	h->ours = ours && len > 0;
	h->lines[h->nlines++] = (OutboxHeaderLine){.start = (uint32) (p - h->buf),
											   .name_len = (uint32) name_len,
											   .value_len = (uint32) len};
	memcpy(p, name, name_len);
	p += name_len;
	if (len == 0)
	{
		/* "Name:" would make libcurl leave the header out */
		*p++ = ';';
	}
	else
	{
		*p++ = ':';
		*p++ = ' ';
		memcpy(p, value, len);
		p += len;
	}
	*p++ = '\0';
	h->len = p - h->buf;
	return true;
}

char *
outbox_headers_query(OutboxHeaders *h, size_t size)
{
	if (!headers_reserve(h, size))
		return NULL;
	h->query = h->len;
	h->len += size;
	h->ours = false;
	return h->buf + h->query;
}
