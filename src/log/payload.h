#ifndef OUTBOX_PAYLOAD_H
#define OUTBOX_PAYLOAD_H

#include "log/log.h"

/* Given instead of a format below: the payload itself, of which a batch is made. */
#define OUTBOX_PAYLOAD_ITSELF OUTBOX_FORMATS

/*
 * Returns the event with the payload or body for a request in this format: itself, or a
 * copy whose payload is read from the log.  The caller has a reference to its page.
 * Returns NULL if the event does not exist any more ('*gone'), or can only be read
 * later.  An error puts reading on hold for the endpoint.  May begin a transaction, so it
 * must not be called inside one.
 */
extern OutboxEvent *outbox_payload_load(OutboxEvent *event, OutboxFormat format,
										int32 endpoint_id, bool *gone);

/* Additional memory that a request will take, the reading included, in bytes, about. */
extern size_t outbox_payload_cost(const OutboxEvent *event, OutboxFormat format);

/*
 * To be called when the body is made.  Frees the payload of a copy that was read for
 * it.
 */
extern void outbox_payload_used(OutboxEvent *event);

/*
 * While this is false, nothing is read, because an answer is being processed.
 * 'wanted' is set to true if something would have been read.
 */
extern bool outbox_payload_readable;
extern bool outbox_payload_wanted;

/*
 * Called before a large payload is used: to read, copy and sign it may take long.  NULL:
 * nothing is to be done.
 */
extern void (*outbox_payload_before_large)(void);

#endif /* OUTBOX_PAYLOAD_H */
