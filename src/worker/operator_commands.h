/*
 * operator_commands.h
 *	  What operators ask for: retry, discard, cancel.
 */
#ifndef OUTBOX_OPERATOR_COMMANDS_H
#define OUTBOX_OPERATOR_COMMANDS_H

#include "endpoint/endpoint.h"

/* Carries out a batch.  False: a lock was not to be had, or there was none. */
extern bool outbox_operator_commands_run(void);

/* A batch was an error: the next one tries each by itself. */
extern void outbox_operator_commands_failed(void);

/* When one that was set aside is tried again; DT_NOEND: there is none. */
extern TimestampTz outbox_operator_commands_next_time(void);

#endif /* OUTBOX_OPERATOR_COMMANDS_H */
