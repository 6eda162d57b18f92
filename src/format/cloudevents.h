/*
 * cloudevents.h
 *	  Events as CloudEvents 1.0.2, in structured and in binary mode.
 */
#ifndef OUTBOX_CLOUDEVENTS_H
#define OUTBOX_CLOUDEVENTS_H

#include "format/header_lines.h"
#include "log/log.h"

/*
 * Learns the default of the source attribute, /outbox/<database>.  Once per
 * process, in a transaction.
 */
extern void outbox_cloudevents_init(void);

/*
 * The body in structured mode, allocated in CurrentMemoryContext.  False:
 * something cannot be converted to UTF-8.
 */
extern bool outbox_cloudevents_body(OutboxEvent *event, size_t *len, char **body);

/*
 * The attributes in binary mode, as header lines.  False: something cannot be
 * converted to UTF-8.  '*added' becomes false when memory runs out.
 */
extern bool outbox_cloudevents_headers(OutboxHeaders *out, OutboxEvent *event,
									   bool *added);

#endif /* OUTBOX_CLOUDEVENTS_H */
