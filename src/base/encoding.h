/*
 * encoding.h
 *	  Text as it goes out: UTF-8, JSON strings, times, percent-encoding, and W3C
 *	  trace context.
 */
#ifndef OUTBOX_ENCODING_H
#define OUTBOX_ENCODING_H

#include "base/outbox.h"

/* Room for what outbox_put_timestamp() writes. */
#define OUTBOX_TIMESTAMP_SIZE 64

#define OUTBOX_TRACEPARENT_LEN 55

/*
 * The UTF-8 of a string of the database: 's' itself, or a palloc'd copy.  NULL:
 * it has none; that is a reason for a dead letter, not an error.
 */
extern char *outbox_to_utf8(char *s, size_t *len);

/*
 * What is wrong with a string of the database as the value of a header, in
 * words; NULL: nothing, unless it has no UTF-8.
 */
extern const char *outbox_text_problem(char *s, size_t len);

/* These write at 'p', where there is room, and return what comes after. */
static inline char *
outbox_put(char *p, const char *s, size_t len)
{
	memcpy(p, s, len);
	return p + len;
}

#define outbox_put_literal(p, s) outbox_put(p, s, sizeof(s) - 1)

/* A JSON string: at most 6 * len + 2 bytes.  's' need not be terminated. */
extern char *outbox_put_json_string(char *p, const char *s, size_t len);

/* RFC 3339 in UTC, with microseconds. */
extern char *outbox_put_timestamp(char *p, TimestampTz t);

/*
 * "%XX" for all bytes but the unreserved ones of RFC 3986; or, as CloudEvents
 * wants header values, for all but printable ASCII, and for the space, '"' and
 * '%'.  'out' has room for 3 * len bytes; returns how many were used.
 */
extern size_t outbox_percent_encode(const char *s, size_t len, char *out);
extern size_t outbox_percent_encode_header(const char *s, size_t len, char *out);

/* Trace context as an emitter may have passed it in. */
extern bool outbox_traceparent_valid(const char *s, size_t len);
extern bool outbox_tracestate_valid(const char *s, size_t len);

/*
 * The same trace with a parent id of its own, OUTBOX_TRACEPARENT_LEN bytes.
 * 'from' is valid.
 */
extern void outbox_traceparent_next(const char *from, char *out);

#endif /* OUTBOX_ENCODING_H */
