#ifndef OUTBOX_COMMAND_PASS_H
#define OUTBOX_COMMAND_PASS_H

#include "endpoint/endpoint.h"

/* The next commands are behind this one, of endpoints up to 'upto'. */
typedef struct OutboxCommandPlace
{
	int32 endpoint_id;
	int64 passed; /* the last command of this endpoint that was carried out */
	int32 upto;
} OutboxCommandPlace;

/*
 * Returns 0 if a pass is under way, or can go on with an endpoint that has paid, else when an
 * endpoint may have paid, or a pass may begin.  DT_NOEND: never.
 */
extern TimestampTz outbox_command_pass_due(TimestampTz now);

/* Begins a pass if none is under way, and returns true if all endpoints are in it. */
extern bool		   outbox_command_pass_begin(TimestampTz now);
extern TimestampTz outbox_command_pass_begun(void);

extern OutboxCommandPlace outbox_command_pass_place(void);

/* The next commands were read, since this time. */
extern void outbox_command_pass_read(TimestampTz began);

/* There are no more commands up to 'upto': goes on behind.  False: that was the end. */
extern bool outbox_command_pass_next_part(void);

/*
 * True if a command is left alone, like those of its endpoint that follow.  'generation' is
 * that of the endpoint's stored settings.
 */
extern bool outbox_command_pass_leaves(int32 endpoint_id, OutboxEndpoint *ep,
									   int64 generation);

/* True if the pass leaves no endpoint behind this one alone. */
extern bool outbox_command_pass_is_last(int32 endpoint_id);

/* The next batch begins behind this command, or behind its endpoint. */
extern void outbox_command_pass_to(int32 endpoint_id, int64 id, OutboxEndpoint *ep);

/*
 * Commands committed before the pass began were in it.  For the rest, and for commands that
 * were left alone, commands_pending is set again, or their endpoint goes on by itself.
 */
extern void outbox_command_pass_end(void);

#endif /* OUTBOX_COMMAND_PASS_H */
