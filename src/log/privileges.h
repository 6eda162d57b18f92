#ifndef OUTBOX_PRIVILEGES_H
#define OUTBOX_PRIVILEGES_H

#include "base/outbox.h"

/*
 * Returns the first privilege that the role lacks, as in "SELECT on sequence
 * outbox.events_seq".  Returns NULL if it has all that a worker needs.  Needs a
 * transaction.
 */
extern const char *outbox_missing_privilege(Oid role);

#endif /* OUTBOX_PRIVILEGES_H */
