/*
 * http_challenge.c
 *	  Owns requests that ask a receiver whether it wants events, where they differ from
 *	  deliveries.
 */
#include "transport/http/http_internal.h"

void
outbox_http_ask(OutboxTransfer *t, const char *origin, OutboxDone answered)
{
	t->origin = origin;
	t->done = answered;
}

bool
outbox_http_allows(const OutboxTransfer *t, double *rate)
{
	*rate = t->head.allowed_rate;
	return t->head.allowed;
}
