#ifndef OUTBOX_HEADER_LINES_H
#define OUTBOX_HEADER_LINES_H

#include "base/outbox.h"

#include <stdlib.h>

/* A line "Name: value". */
typedef struct OutboxHeaderLine
{
	uint32 start; /* where it begins in buf */
	uint32 name_len;
	uint32 value_len; /* 0: the line is "Name;" */
} OutboxHeaderLine;

/*
 * Header lines ("Name: value", NUL-terminated), packed one after the other.  Several
 * lines of outbox itself, if adjacent, are one entry, with CRLF between them.  Names
 * and values have no CR or LF.  The memory is malloc'd, and reused from request to
 * request.
 */
typedef struct OutboxHeaders
{
	char   *buf;
	size_t	len;
	size_t	size;
	int		max;  /* of lines, and so of entries */
	bool	ours; /* the last entry may take more lines */
	int		n;
	uint32 *start; /* where each entry begins in buf */
	int		nlines;

	OutboxHeaderLine *lines;
	size_t			  query; /* where the text in buf begins that the URL gets; 0: none */
} OutboxHeaders;

/*
 * As realloc(), but the old memory is overwritten, of which 'used' bytes may have a
 * credential.
 */
static inline char *
outbox_headers_realloc(char *old, size_t used, size_t size)
{
	char *buf = malloc(size);

	if (buf == NULL || old == NULL)
		return buf;
	memcpy(buf, old, used);
	explicit_bzero(old, used);
	free(old);
	return buf;
}

/* Removes all lines.  The memory is kept. */
extern void outbox_headers_reset(OutboxHeaders *h);

/*
 * Appends "name: value".  'value' need not be terminated.  Returns false if memory
 * runs out.
 */
extern bool outbox_headers_put(OutboxHeaders *h, const char *name, size_t name_len,
							   const char *value, size_t len);

/* The same.  Most names are constants, so their length is one, too. */
static inline bool
outbox_headers_add(OutboxHeaders *h, const char *name, const char *value, size_t len)
{
	return outbox_headers_put(h, name, strlen(name), value, len);
}

/*
 * Makes space for a query of 'size' bytes with its NUL, behind the lines that were
 * appended.  Returns where it is to be written.  NULL: memory runs out.
 */
extern char *outbox_headers_query(OutboxHeaders *h, size_t size);

#endif /* OUTBOX_HEADER_LINES_H */
