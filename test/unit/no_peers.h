/*
 * no_peers.h
 *	  Stands in for functions of http_peer.c and http_rest.c that http_pool.c calls.
 */
#include "transport/http/http_internal.h"

const char *
outbox_http_peer_event(int fd)
{
	(void) fd;
	return NULL;
}

const char *
outbox_http_peer_ended(void)
{
	return NULL;
}

static void
serves(int32_t endpoint)
{
	(void) endpoint;
}

void (*outbox_http_serves)(int32_t) = serves;

/* None rests. */
int64_t
outbox_http_rests_timer(int64_t at)
{
	return at;
}
