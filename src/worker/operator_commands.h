#ifndef OUTBOX_OPERATOR_COMMANDS_H
#define OUTBOX_OPERATOR_COMMANDS_H

#include "endpoint/endpoint.h"

/* Carries out a batch of commands. */
extern void outbox_operator_commands_run(void *settle_begun);

/*
 * The last batch failed.  The next one carries out each command in a
 * subtransaction.
 */
extern void outbox_operator_commands_failed(void);

/*
 * Returns 0 if there may be commands that can be carried out, else when a command that was
 * set aside is tried again, or an endpoint may have paid the time that its commands took.
 * DT_NOEND: there is none.
 */
extern TimestampTz outbox_operator_commands_due(void);

#endif /* OUTBOX_OPERATOR_COMMANDS_H */
