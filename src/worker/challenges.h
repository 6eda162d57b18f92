#ifndef OUTBOX_CHALLENGES_H
#define OUTBOX_CHALLENGES_H

#include "endpoint/endpoint.h"

/* Must be called when the settings of an endpoint were assigned. */
extern void outbox_challenges_note(const OutboxEndpoint *ep);

/* Asks the receivers whose time has come. */
extern void outbox_challenges_step(TimestampTz now);

/* When the endpoint's receiver is to be asked (DT_NOEND: it is not). */
extern TimestampTz outbox_challenges_next_time(const OutboxEndpoint *ep);

/* Takes back the request that asks, if there is one. */
extern void outbox_challenge_end(OutboxEndpoint *ep);

#endif /* OUTBOX_CHALLENGES_H */
