/*
 * payload.h
 *	  Payloads in memory: read with their event, or left in the log until they
 *	  are sent.
 */
#ifndef OUTBOX_PAYLOAD_H
#define OUTBOX_PAYLOAD_H

#include "log/log.h"

/* In the place of a format, below: what a batch is made of. */
#define OUTBOX_PAYLOAD_ITSELF OUTBOX_FORMATS

/*
 * The event with what a request in this format is made of: itself, or a copy with
 * its payload that is read from the log.  The caller has a reference to its page.
 * NULL: the event is gone, or it can only be read later.  Begins a transaction if
 * need be, so it may be called outside of one only.
 */
extern OutboxEvent *outbox_payload_bring(OutboxEvent *event, OutboxFormat format,
										 bool *gone);

/* Bytes that a request will take in addition, the reading included; about. */
extern size_t outbox_payload_cost(const OutboxEvent *event, OutboxFormat format);

/* The body is made: a copy that was read for it needs its payload no more. */
extern void outbox_payload_used(OutboxEvent *event);

/*
 * While this is false, nothing is read: an answer is being worked through.
 * 'wanted' is set when something would have been.
 */
extern bool outbox_payload_readable;
extern bool outbox_payload_wanted;

#endif /* OUTBOX_PAYLOAD_H */
