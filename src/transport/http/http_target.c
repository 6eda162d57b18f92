/*
 * http_target.c
 *	  Owns what is known of a target while it has transfers, and which transfers wait
 *	  for its first one to get a connection.
 */
#include "transport/http/http_internal.h"

#include <stdlib.h>

#define HOST_BUCKETS 256

static dlist_head hosts[HOST_BUCKETS];
static dlist_head free_hosts = DLIST_STATIC_INIT(free_hosts);
static dlist_head ready_hosts = DLIST_STATIC_INIT(ready_hosts);

void
outbox_http_targets_init(void)
{
	for (int i = 0; i < HOST_BUCKETS; i++)
		dlist_init(&hosts[i]);
}

static dlist_head *
host_bucket(const void *key)
{
	uint64 hash = (uint64) (uintptr_t) key * UINT64CONST(0x9E3779B97F4A7C15);

	return &hosts[hash >> 56];
}

OutboxTargetState *
outbox_http_enter_target(const void *key)
{
	dlist_head		  *bucket = host_bucket(key);
	dlist_iter		   iter;
	OutboxTargetState *host;

	dlist_foreach(iter, bucket)
	{
		host = dlist_container(OutboxTargetState, node, iter.cur);
		if (host->key == key)
		{
			host->in_flight++;
			return host;
		}
	}

	if (!dlist_is_empty(&free_hosts))
		host = dlist_container(OutboxTargetState, node, dlist_pop_head_node(&free_hosts));
	else if ((host = malloc(sizeof(OutboxTargetState))) == NULL)
		return NULL;
	memset(host, 0, sizeof(OutboxTargetState));
	dlist_init(&host->waiting);
	host->key = key;
	host->in_flight = 1;
	dlist_push_head(bucket, &host->node);
	return host;
}

static void
host_is_ready(OutboxTargetState *host)
{
	if (!host->is_ready && !dlist_is_empty(&host->waiting))
	{
		host->is_ready = true;
		dlist_push_tail(&ready_hosts, &host->ready);
	}
}

/* The transfer must be out of libcurl and out of its host's list. */
void
outbox_http_leave_target(OutboxTransfer *t)
{
	OutboxTargetState *host = t->host;

	if (host == NULL)
		return;
	t->host = NULL;
	if (host->first == t)
	{
		host->first = NULL;
		host_is_ready(host);
	}
	if (--host->in_flight == 0)
	{
		if (host->is_ready)
			dlist_delete(&host->ready);
		dlist_delete(&host->node);
		dlist_push_head(&free_hosts, &host->node);
	}
}

void
outbox_http_got_through(OutboxTransfer *t)
{
	t->host->open = true;
	t->host->first = NULL; /* none waits for its answer */
	host_is_ready(t->host);
}

void
outbox_http_start_waiting(void (*launch)(OutboxTransfer *t))
{
	while (!dlist_is_empty(&ready_hosts))
	{
		OutboxTargetState *host = dlist_container(OutboxTargetState, ready,
												  dlist_pop_head_node(&ready_hosts));

		host->is_ready = false;
		while (!dlist_is_empty(&host->waiting) && (host->open || host->first == NULL))
		{
			OutboxTransfer *t = dlist_container(OutboxTransfer, node,
												dlist_pop_head_node(&host->waiting));

			if (!host->open)
				host->first = t;
			launch(t);
		}
	}
}

bool
outbox_http_targets_are_ready(void)
{
	return !dlist_is_empty(&ready_hosts);
}

void
outbox_http_targets_shutdown(void)
{
	while (!dlist_is_empty(&free_hosts))
		free(dlist_container(OutboxTargetState, node, dlist_pop_head_node(&free_hosts)));
}
