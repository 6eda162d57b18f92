#ifndef OUTBOX_KEPT_LIMIT_H
#define OUTBOX_KEPT_LIMIT_H

#include "endpoint/endpoint.h"

/* Returns when the next step is due.  DT_NOEND: no tenant has a limit. */
extern TimestampTz outbox_kept_limit_due(void);

/* Gives up the oldest rows of tenants that have more than their limits allow. */
extern void outbox_kept_limit_run(void *now);

/* False while the endpoint's tenant has so much that none may be added. */
extern bool outbox_kept_limit_has_room(const OutboxEndpoint *ep);

#endif /* OUTBOX_KEPT_LIMIT_H */
