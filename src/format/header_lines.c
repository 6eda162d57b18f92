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
	h->n = 0;
	h->ours = false;
}

/*
 * Makes space for 'len' more bytes and one more line.  Returns false if memory runs
 * out.
 */
static bool
headers_reserve(OutboxHeaders *h, size_t len)
{
	if (h->n >= h->max)
	{
		int		max = h->max ? h->max * 2 : 32;
		uint32 *start = realloc(h->start, max * sizeof(uint32));

		if (start == NULL)
			return false;
		h->start = start;
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
		buf = realloc(h->buf, size);
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
is_ours(const char *name)
{
	return strncmp(name, "webhook-", 8) == 0 || strncmp(name, "outbox-", 7) == 0 ||
		strncmp(name, "ce-", 3) == 0 || strcmp(name, "Idempotency-Key") == 0;
}

bool
outbox_headers_add(OutboxHeaders *h, const char *name, const char *value, size_t len)
{
	size_t namelen = strlen(name);
	bool   ours = is_ours(name);
	char  *p;

	while (len > 0 && (*value == ' ' || *value == '\t'))
	{
		value++;
		len--;
	}
	if (len > PG_UINT32_MAX / 4 || namelen > PG_UINT32_MAX / 4 ||
		!headers_reserve(h, namelen + len + 4))
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
	memcpy(p, name, namelen);
	p += namelen;
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
