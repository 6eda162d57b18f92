/*
 * test_pool.c
 *	  Requests to one host are in one multi handle while they are few, and are divided
 *	  among all while they are many (TAP).
 *
 * links: src/transport/http/http_pool.c
 */
#include "transport/http/http_internal.h"
#include "base/memory.h"
#include "base/settings.h"
#include "no_peers.h"
#include "tap.h"
#include "no_server.h"

#define FEW 100
#define MANY 6400
#define MOST 256 /* that a handle may have of many */

int	   outbox_worker_max_connections = 16384;
int	   outbox_worker_max_in_flight = 1024;
uint64 outbox_http_opened;
int	   outbox_http_connections;
int	   outbox_worker_memory = 1024 * 1024; /* kB */
size_t outbox_http_idle_bytes;

int
outbox_open_files(void)
{
	return 1000000;
}

bool
outbox_http_watch_pool(OutboxHttpPool *pool)
{
	(void) pool;
	return true;
}

static OutboxTransfer requests[MANY];

/* Of the handles of the first n requests. */
static int
highest(int n)
{
	int most = 0;

	for (int i = 0; i < n; i++)
		most = Max(most, requests[i].pool->running);
	return most;
}

int
main(void)
{
	bool together = true;
	char text[32];

	if (!outbox_http_pools_init())
		return 1;
	for (int i = 0; i < MANY; i++)
	{
		OutboxTransfer *t = &requests[i];

		t->easy = curl_easy_init();
		t->rest.endpoint = i + 1;
		t->host_hash = outbox_http_host_hash("https://hooks.example.com/services/1");
		if (t->easy == NULL || outbox_http_pool_add(t) != CURLM_OK)
			return 1;
		if (i < FEW)
			together = together && t->pool == requests[0].pool;
	}
	ok(together, "a hundred requests to one host", "are in one handle", "");
	snprintf(text, sizeof(text), "%d", highest(MANY));
	ok(highest(MANY) <= MOST, "thousands", "are divided", text);

	for (int i = 0; i < MANY; i++)
	{
		outbox_http_pool_remove(&requests[i]);
		curl_easy_cleanup(requests[i].easy);
	}
	ok(highest(MANY) == 0, "after their end", "no handle has one", "");
	outbox_http_pools_shutdown();
	return done_testing();
}
