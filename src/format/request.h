/*
 * request.h
 *	  Turns an event into the bytes and header lines of wire.md.
 */
#ifndef OUTBOX_REQUEST_H
#define OUTBOX_REQUEST_H

#include "format/header_lines.h"
#include "format/signature.h"
#include "log/log.h"

typedef enum OutboxRedelivery
{
	OUTBOX_FIRST_DELIVERY,
	OUTBOX_REDELIVERY_RETRY, /* asked for by hand: outbox.retry() */
	OUTBOX_REDELIVERY_REPLAY /* asked for by hand: outbox.replay() */
} OutboxRedelivery;

/* What of an endpoint's settings shapes its requests. */
typedef struct OutboxRequestConfig
{
	OutboxFormat format;
	int			 nheaders; /* the endpoint's own headers */
	char	   **header_names;
	char	   **header_values;
	int			 nkeys; /* 1, or 2 during a rotation */
	OutboxKey	 keys[2];
} OutboxRequestConfig;

/*
 * The body of an event in a format.  Rendered once, into the page's memory:
 * the same bytes for each attempt and each endpoint of that format.  NULL: the
 * event cannot be sent; outbox_request_headers() then returns the reason.
 */
extern const char *outbox_request_body(OutboxEvent *event, OutboxFormat format,
									   size_t *len);

/*
 * Writes all header lines of one attempt.  'attempt' counts from 1, 'now' is in
 * unix seconds.  NULL: done.  Otherwise why this event can never be sent (a row
 * that came past the checks): a reason for the dead letter.
 */
extern const char *outbox_request_headers(OutboxHeaders *out, OutboxEvent *event,
										  const OutboxRequestConfig *settings,
										  int attempt, OutboxRedelivery redelivery,
										  int64 now, const char *body, size_t body_len);

/*
 * The same for a batch, whose 'id' is not an event's: what belongs to one event
 * is in the body.
 */
extern const char *outbox_request_batch_headers(OutboxHeaders *out, const char *id,
												const OutboxRequestConfig *settings,
												int attempt, int64 now, const char *body,
												size_t body_len);

/* Why this event can never be sent; NULL: it can. */
extern const char *outbox_request_problem(const OutboxEvent *event);
#define OUTBOX_NO_UTF8 "the event cannot be converted to UTF-8"

/*
 * The payload as members of a JSON object: "data", or "content_type" and
 * "data_base64".  Bytes are not looked into, whatever their content type says.
 * False: it has no UTF-8.  Writes at most 'size' bytes.
 */
typedef struct OutboxData
{
	char  *content_type;
	size_t content_type_len;
	char  *data;
	size_t data_len;
	size_t size;
} OutboxData;

extern bool	 outbox_data_prepare(OutboxData *d, const OutboxEvent *event);
extern char *outbox_data_put(char *p, const OutboxData *d);

#endif /* OUTBOX_REQUEST_H */
