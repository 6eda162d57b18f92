#ifndef OUTBOX_PROOFS_H
#define OUTBOX_PROOFS_H

#include "endpoint/endpoint.h"

/* True if the next settle has something to store. */
extern bool outbox_proof_waits(const OutboxEndpoint *ep);

/*
 * Stores it, in a settle.  False: another transaction is changing the endpoint's row, or
 * has changed it since, and the next settle tries again unless a reload drops the proof.
 * _written brings memory up to date after the commit.
 */
extern bool outbox_proof_write(OutboxEndpoint *ep);
extern void outbox_proof_written(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_PROOFS_H */
