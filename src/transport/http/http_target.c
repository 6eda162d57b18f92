/*
 * http_target.c
 *	  Per-target state: concurrency limit, and transfers waiting for its first
 *	  connection.
 */
#include "base/listed.h"
#include "transport/http/http_internal.h"

#include <stdlib.h>

#define HOST_BITS 12 /* of the hash: each endpoint may have a request in flight */
#define STEP 10		 /* ms between looks at the hosts that are full */

static dlist_head hosts[1 << HOST_BITS];
static dlist_head free_hosts = DLIST_STATIC_INIT(free_hosts);
static dlist_head ready_hosts = DLIST_STATIC_INIT(ready_hosts);

/* Targets with deliveries that are kept back because enough of them are running. */
static dlist_head full_hosts = DLIST_STATIC_INIT(full_hosts);
static int64	  next_step; /* ms */

void
outbox_http_targets_init(void)
{
	for (int i = 0; i < (int) lengthof(hosts); i++)
		dlist_init(&hosts[i]);
}

static dlist_head *
host_bucket(const void *key)
{
	uint64 hash = (uint64) (uintptr_t) key * UINT64CONST(0x9E3779B97F4A7C15);

	return &hosts[hash >> (64 - HOST_BITS)];
}

static OutboxTargetState *
find_target(const void *key)
{
	dlist_iter iter;

	dlist_foreach(iter, host_bucket(key))
	{
		OutboxTargetState *host = dlist_container(OutboxTargetState, node, iter.cur);

		if (host->key == key)
			return host;
	}
	return NULL;
}

static int nrunning; /* transfers of all targets */

/*
 * Where connections are scarce, more of them to one host would close connections to
 * others.  So a target begins with one request at a time.
 */
static int
first_width(void)
{
	return outbox_http_pools_are_scarce(nrunning) ? 1 : OUTBOX_WIDTH_FIRST;
}

OutboxTargetState *
outbox_http_enter_target(const void *key)
{
	OutboxTargetState *host = find_target(key);

	if (host != NULL)
	{
		host->in_flight++;
		return host;
	}

	if (!dlist_is_empty(&free_hosts))
		host = dlist_container(OutboxTargetState, node, dlist_pop_head_node(&free_hosts));
	else if ((host = malloc(sizeof(OutboxTargetState))) == NULL)
		return NULL;
	memset(host, 0, sizeof(OutboxTargetState));
	dlist_init(&host->waiting);
	host->key = key;
	host->in_flight = 1;
	host->most = 1;
	outbox_width_begin(&host->width, first_width(), 0);
	dlist_push_head(host_bucket(key), &host->node);
	return host;
}

static void
host_is_ready(OutboxTargetState *host)
{
	if (!dlist_is_empty(&host->waiting))
		outbox_list_add(&ready_hosts, &host->ready);
}

bool
outbox_http_target_has_room(const OutboxTargetState *host)
{
	return host->open || host->connecting < host->most;
}

static void
run(OutboxTransfer *t)
{
	t->runs = t->connects = true;
	t->host->running++;
	nrunning++;
	t->host->connecting++;
}

/* More are wanted although there are connections. */
static void
is_full(OutboxTargetState *host)
{
	int64 now;

	if (outbox_is_listed(&host->full))
		return;
	now = outbox_http_now();
	outbox_width_settle(&host->width, now);
	if (dlist_is_empty(&full_hosts))
		next_step = now + STEP;
	outbox_list_add(&full_hosts, &host->full);
}

bool
outbox_http_run_or_wait(OutboxTransfer *t)
{
	OutboxTargetState *host = t->host;

	/* Waiting transfers are not overtaken. */
	if (dlist_is_empty(&host->waiting) && outbox_http_target_has_room(host))
	{
		run(t);
		return true;
	}
	t->state = WAITING;
	dlist_push_tail(&host->waiting, &t->node);
	return false;
}

int
outbox_http_width_of(const OutboxTarget *target, bool more)
{
	OutboxTargetState *host = find_target(target);

	if (host == NULL)
		return first_width();
	if (more && host->open)
	{
		host->asked = true;
		is_full(host);
	}
	return host->width.most;
}

static void
ends_connecting(OutboxTransfer *t)
{
	if (t->connects)
		t->host->connecting--;
	t->connects = false;
}

/* The transfer must be out of libcurl and out of its host's list. */
void
outbox_http_leave_target(OutboxTransfer *t)
{
	OutboxTargetState *host = t->host;

	if (host == NULL)
		return;
	ends_connecting(t);
	if (t->runs)
	{
		host->running--;
		nrunning--;
		host->width.ended++;
		host->width.good += t->outcome.status / 100 == 2;
	}
	t->runs = false;
	t->host = NULL;
	host_is_ready(host);
	if (--host->in_flight == 0)
	{
		outbox_list_remove(&host->full);
		outbox_list_remove(&host->ready);
		dlist_delete(&host->node);
		dlist_push_head(&free_hosts, &host->node);
	}
}

void
outbox_http_got_through(OutboxTransfer *t)
{
	ends_connecting(t);
	if (t->host->open)
		return;
	t->host->open = true;
	host_is_ready(t->host);
}

void
outbox_http_failed(OutboxTransfer *t)
{
	OutboxTargetState *host = t->host;

	if (!host->open)
		host->most = Min(host->most * 2, OUTBOX_WIDTH_FIRST);
	host->open = false;
}

static void
step_full_hosts(void)
{
	dlist_mutable_iter iter;
	int64			   now;

	if (dlist_is_empty(&full_hosts) || (now = outbox_http_now()) < next_step)
		return;
	next_step = now + STEP;
	dlist_foreach_modify(iter, &full_hosts)
	{
		OutboxTargetState *host = dlist_container(OutboxTargetState, full, iter.cur);

		if (!host->open || (!host->asked && host->in_flight < host->width.most))
			outbox_list_remove(&host->full);
		else
			outbox_width_step(&host->width, host->running, host->connecting, now);
		host->asked = false;
	}
}

int64
outbox_http_targets_deadline(void)
{
	return dlist_is_empty(&ready_hosts) ?
		(dlist_is_empty(&full_hosts) ? OUTBOX_HTTP_NEVER : next_step) :
		0;
}

void
outbox_http_start_waiting(void (*launch)(OutboxTransfer *t), int64 until)
{
	step_full_hosts();
	while (!dlist_is_empty(&ready_hosts))
	{
		OutboxTargetState *host = dlist_head_element(OutboxTargetState, ready,
													 &ready_hosts);

		outbox_list_remove(&host->ready);
		while (!dlist_is_empty(&host->waiting) && outbox_http_target_has_room(host))
		{
			OutboxTransfer *t = dlist_container(OutboxTransfer, node,
												dlist_pop_head_node(&host->waiting));

			run(t);
			launch(t);
			if (outbox_http_now() > until)
			{
				host_is_ready(host);
				return;
			}
		}
	}
}

void
outbox_http_targets_shutdown(void)
{
	while (!dlist_is_empty(&free_hosts))
		free(dlist_container(OutboxTargetState, node, dlist_pop_head_node(&free_hosts)));
}
