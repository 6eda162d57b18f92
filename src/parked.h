/*
 * parked.h
 *	  Deliveries that have a row in outbox.parked.
 *
 * All of these run inside a transaction of session.h.
 */
#ifndef OUTBOX_PARKED_H
#define OUTBOX_PARKED_H

#include "endpoint.h"

/* What waits in the table for this endpoint. */
extern void outbox_parked_load(OutboxEndpoint *ep);

/* Brings deliveries back: due retries; the next followers of waiting lanes. */
extern void outbox_parked_load_retries(OutboxEndpoint *ep, const int64 *seqs, int n);
extern void outbox_parked_load_followers(OutboxEndpoint *ep);

/* In a settle: what became of deliveries; rows whose event turned out to be gone. */
extern void outbox_parked_write(OutboxEndpoint *ep);
extern void outbox_parked_write_gone(void);

extern void outbox_parked_forget(int32 endpoint_id, const OutboxTick *start);

#endif							/* OUTBOX_PARKED_H */
