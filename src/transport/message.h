#ifndef OUTBOX_MESSAGE_H
#define OUTBOX_MESSAGE_H

#include "format/request.h"
#include "transport/transport.h"

/*
 * Fills in all but the body.  'prefix' is the transport's attribute_prefix.  Returns
 * NULL, or why this event can never be sent.  The message points to memory that is
 * valid until the next call.
 */
extern const char *outbox_message_fill(OutboxMessage *m, OutboxEvent *event,
									   const OutboxRequestConfig *settings, int attempt,
									   OutboxRedelivery redelivery, const char *prefix);

#endif /* OUTBOX_MESSAGE_H */
