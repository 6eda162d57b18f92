#ifndef OUTBOX_REQUEST_H
#define OUTBOX_REQUEST_H

#include "format/header_lines.h"
#include "format/profile.h"
#include "format/shape.h"
#include "log/log.h"

typedef enum OutboxRedelivery
{
	OUTBOX_FIRST_DELIVERY,
	OUTBOX_REDELIVERY_RETRY,  /* by an operator's outbox.retry() */
	OUTBOX_REDELIVERY_REPLAY, /* by an operator's outbox.replay() */
	OUTBOX_REDELIVERY_RESEND  /* by an operator's outbox.resend() */
} OutboxRedelivery;

/* The settings of an endpoint that its requests depend on. */
typedef struct OutboxRequestConfig
{
	OutboxFormat		 format;
	int					 nheaders; /* the endpoint's own headers */
	char			   **header_names;
	char			   **header_values;
	int					 nkeys;	  /* 1, or 2 during a rotation */
	OutboxKey			*keys;	  /* of the last one, only the bytes that it has */
	OutboxShape			 shape;	  /* of the payload */
	const OutboxProfile *profile; /* of an endpoint without one: the standard's */
} OutboxRequestConfig;

/*
 * The body of an event in a format.  Made once, in the page's memory, with the same
 * bytes for each attempt and each endpoint of that format.  Returns NULL if the event
 * cannot be sent.  outbox_request_headers() then returns the reason.
 */
extern const char *outbox_request_body(OutboxEvent *event, OutboxFormat format,
									   size_t *len);

/*
 * Writes all header lines of one attempt.  'attempt' counts from 1, 'now' is in unix
 * seconds.  Returns NULL if they are written.  Otherwise returns why this event can
 * never be sent (a row that evaded the checks), as the reason of the dead letter.
 * Throws if memory runs out.
 */
extern const char *outbox_request_headers(OutboxHeaders *out, OutboxEvent *event,
										  const OutboxRequestConfig *settings,
										  int attempt, OutboxRedelivery redelivery,
										  int64 now, const char *body, size_t body_len);

/*
 * The same for a transport that is not HTTP: headers in lower case, text as it is, and
 * neither key nor signature.  'prefix' is for attributes of CloudEvents in binary mode (NULL: none).
 */
extern const char *outbox_request_message_headers(OutboxHeaders *out, OutboxEvent *event,
												  const OutboxRequestConfig *settings,
												  int						 attempt,
												  OutboxRedelivery			 redelivery,
												  const char *prefix, const char *body);

/*
 * The same for a batch.  Its 'id' is not an event's.  Data of a single event is in the
 * body.
 */
extern const char *outbox_request_batch_headers(OutboxHeaders *out, const char *id,
												const OutboxRequestConfig *settings,
												int attempt, int64 now, const char *body,
												size_t body_len);

/*
 * The same for the handshake of CloudEvents' webhooks, which asks a receiver whether it
 * wants events of this 'origin'.  'rate': requests in a minute (0: any number).
 */
extern const char *outbox_request_handshake_headers(OutboxHeaders			  *out,
													const OutboxRequestConfig *settings,
													const char *origin, int64 rate);

/* Returns why this event can never be sent; NULL: it can. */
extern const char *outbox_request_problem(const OutboxEvent *event);
#define OUTBOX_NO_UTF8 "the event cannot be converted to UTF-8"

/*
 * The payload as members of a JSON object: "data", or "content_type" and
 * "data_base64".  Bytes are not examined, whatever their content type says.  The first
 * function returns false if the payload has no UTF-8.  The second writes at most
 * 'size' bytes.
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
