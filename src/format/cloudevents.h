#ifndef OUTBOX_CLOUDEVENTS_H
#define OUTBOX_CLOUDEVENTS_H

#include "format/header_lines.h"
#include "log/log.h"

/*
 * Sets the default of the source attribute, /outbox/<database>, if it is not set.  Called
 * in a transaction, before any other function here.
 */
extern void outbox_cloudevents_init(void);

/*
 * Makes the body in structured mode, in CurrentMemoryContext.  Returns false if
 * something cannot be converted to UTF-8.
 */
extern bool outbox_cloudevents_body(OutboxEvent *event, size_t *len, char **body);

/* Attributes of an event, besides attributes made of its own headers. */
#define OUTBOX_CLOUDEVENTS_ATTRIBUTES 8

/*
 * Appends the attributes in binary mode, as header lines whose names begin with
 * 'prefix'.  'encoded': percent-encoded, as HTTP wants it.  Returns false if something
 * cannot be converted to UTF-8.  Sets '*added' to false if memory runs out.
 */
extern bool outbox_cloudevents_headers(OutboxHeaders *out, OutboxEvent *event,
									   const char *prefix, bool encoded, bool *added);

#endif /* OUTBOX_CLOUDEVENTS_H */
