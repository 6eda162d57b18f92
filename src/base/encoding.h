#ifndef OUTBOX_ENCODING_H
#define OUTBOX_ENCODING_H

#include "base/outbox.h"

#include "lib/stringinfo.h"

/* Space that outbox_put_timestamp() needs, in bytes. */
#define OUTBOX_TIMESTAMP_SIZE 64

#define OUTBOX_TRACEPARENT_LEN 55

/*
 * Converts a string of the database to UTF-8.  Returns 's' itself or a palloc'd copy,
 * and sets '*len' to its length.  Returns NULL if a character has no UTF-8: the event
 * then becomes a dead letter, without an error.
 */
extern char *outbox_to_utf8(char *s, size_t *len);

/*
 * Returns what is wrong with a string of the database as the value of a header, in
 * words.  Returns NULL if nothing is.  A string that has no UTF-8 is checked as it is.
 */
extern const char *outbox_text_problem(char *s, size_t len);

/*
 * For text that a stranger wrote.  Bytes that are not valid in the encoding of this
 * database become question marks: in a palloc'd copy, or in place, where control
 * characters become question marks, too.
 */
extern char *outbox_foreign_text(const char *s, size_t len);
extern void	 outbox_foreign_words(char *s);

/* Appends a JSON string to 'text'.  's' need not be terminated. */
extern void outbox_append_json_string(StringInfo text, const char *s, int len);

/*
 * The functions below write at 'p', where the caller has made space, and return the
 * position after the last byte that they wrote.
 */
static inline char *
outbox_put(char *p, const char *s, size_t len)
{
	memcpy(p, s, len);
	return p + len;
}

#define outbox_put_literal(p, s) outbox_put(p, s, sizeof(s) - 1)

/* Writes a JSON string: at most 6 * len + 2 bytes.  's' need not be terminated. */
extern char *outbox_put_json_string(char *p, const char *s, size_t len);

/* Writes a time of RFC 3339 in UTC, with microseconds. */
extern char *outbox_put_timestamp(char *p, TimestampTz t);

/*
 * Write "%XX" for some bytes and the others as they are.  The first encodes all but the
 * unreserved ones of RFC 3986.  The second follows CloudEvents' rule for header values:
 * it encodes every byte that is not printable ASCII, and the space, '"' and '%'.  'out'
 * has space for 3 * len bytes.  Both return how many bytes they wrote.
 */
extern size_t outbox_percent_encode(const char *s, size_t len, char *out);
extern size_t outbox_percent_encode_header(const char *s, size_t len, char *out);

/* True if trace context that an emitter passed is valid. */
extern bool outbox_traceparent_valid(const char *s, size_t len);
extern bool outbox_tracestate_valid(const char *s, size_t len);

#endif /* OUTBOX_ENCODING_H */
