/*
 * header_lines.h
 *	  Header lines of a request, as text.
 */
#ifndef OUTBOX_HEADER_LINES_H
#define OUTBOX_HEADER_LINES_H

#include "base/outbox.h"

/*
 * Header lines ("Name: value", NUL-terminated), packed one after the other;
 * several of our own, one after the other, are one entry with CRLF in between.
 * Names and values hold no CR or LF.  malloc'd and reused from request to
 * request.
 */
typedef struct OutboxHeaders
{
	char   *buf;
	size_t	len;
	size_t	size;
	int		n;
	int		max;
	bool	ours;  /* the last entry takes further lines */
	uint32 *start; /* of each entry in buf */
} OutboxHeaders;

extern void outbox_headers_reset(OutboxHeaders *h);

/* Appends "name: value"; value need not be terminated. False: out of memory. */
extern bool outbox_headers_add(OutboxHeaders *h, const char *name, const char *value,
							   size_t len);

#endif /* OUTBOX_HEADER_LINES_H */
