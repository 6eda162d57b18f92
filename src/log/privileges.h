/*
 * privileges.h
 *	  What the role of a worker has to be allowed.
 */
#ifndef OUTBOX_PRIVILEGES_H
#define OUTBOX_PRIVILEGES_H

#include "base/outbox.h"

/*
 * The first privilege that the role lacks, as in "SELECT on sequence
 * outbox.events_seq"; NULL: it has all that a worker relies on.  Needs a
 * transaction.
 */
extern const char *outbox_missing_privilege(Oid role);

#endif /* OUTBOX_PRIVILEGES_H */
