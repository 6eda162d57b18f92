#ifndef OUTBOX_SHAPE_H
#define OUTBOX_SHAPE_H

#include "log/log.h"

#define OUTBOX_SHAPE_MAX 4096 /* bytes of a template */

/*
 * The paths of a template times the bytes of a payload, and the bytes that it makes.  The
 * worst template and payload then take about 5 ms.
 */
#define OUTBOX_SHAPE_MAX_WORK (UINT64CONST(4) * 1024 * 1024)
#define OUTBOX_SHAPED_MAX (2 * 1024 * 1024)

/* A template, JSON text as jsonb has it, and what becomes of an event that lacks a part. */
typedef struct OutboxShape
{
	const char *text;	   /* NULL: none */
	bool		needs_all; /* true if the event is dead then, false if the part is null */
} OutboxShape;

/* Returns the problem with a template, and sets '*hint'; NULL: none. */
extern const char *outbox_shape_problem(const char *text, const char **hint);

/*
 * As outbox_payload_load() and outbox_payload_cost(), and the event has the payload that
 * the template makes, in a page of its own.  NULL: if it cannot be made, '*problem' says
 * why, until the next call.
 */
extern OutboxEvent *outbox_shape_load(OutboxEvent *event, const OutboxShape *shape,
									  OutboxFormat format, int32 endpoint_id, bool *gone,
									  const char **problem);
extern size_t		outbox_shape_cost(const OutboxEvent *event, const OutboxShape *shape,
									  OutboxFormat format);

#endif /* OUTBOX_SHAPE_H */
