/*
 * http_pool.c
 *	  Owns libcurl's multi handles, among which requests are divided by their hosts, and how many
 *	  connections stay open.
 *
 * One multi handle keeps its connections in a table of about a hundred lists, and looks for
 * the oldest connection among all of them.  With 10,000 hosts a request would cost 300 µs.
 * So there are several handles, and each has its share of the hosts.
 *
 * Among the connections to one host a handle looks for a free one, and for closed ones as
 * often as it finds one.  When a receiver closed 5,000 of 10,000, a call took over 2 s.  So
 * all connections to one host are in the same handle while that has few requests, and are
 * divided by endpoint while it has many.
 */
#include "base/memory.h"
#include "base/settings.h"
#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "transport/http/http_internal.h"

#define POOLS_MAX 64			 /* bits of 'touched' and 'added' */
#define CONNECTIONS_PER_POOL 128 /* that one handle serves well */
#define TOGETHER 8				 /* requests that are begun together */
#define CONNECTIONS_SHARE 4		 /* of the worker's memory, 1/4 is for idle connections */
#define IDLE_SHARE 8 /* with fewer idle ones, none is closed for another host */

/* Descriptors that tables, lookups and other transports may need. */
#define FILES_OF_OTHERS 2048

static OutboxHttpPool pools[POOLS_MAX];
static int			  npools;
static uint64 touched; /* a bit for each handle in which requests may have ended */
static uint64 added;   /* a bit for each handle with requests that it has not begun */
static int	  nadded;  /* such requests */
static bool	  alone;   /* true if each is begun alone, because it may connect */
static int	  limit;   /* of connections */
static bool	  crowded; /* true if idle connections are being closed */

static int
set_timer(CURLM *m, long ms, void *arg)
{
	OutboxHttpPool *pool = arg;

	pool->timer_at = ms < 0 ? OUTBOX_HTTP_NEVER : ms == 0 ? 0 : outbox_http_now() + ms;
	return 0;
}

/* A handle closes the connection that was not used for the longest time. */
static void
limit_each(long each)
{
	for (int i = 0; i < npools; i++)
		curl_multi_setopt(pools[i].multi, CURLMOPT_MAXCONNECTS, each);
}

/* Idle connections must not use up the file descriptors. */
static int
find_limit(void)
{
	int64 files = outbox_open_files();
	int64 others = 2 * (int64) outbox_worker_max_in_flight + FILES_OF_OTHERS;
	int64 wanted = outbox_worker_max_connections < 0 ? OUTBOX_CONNECTIONS_MAX :
													   outbox_worker_max_connections;

	return (int) Max(Min(wanted, Max(files - others, files / 2)), 1);
}

bool
outbox_http_pools_init(void)
{
	limit = find_limit();
	npools = Max(Min(limit / CONNECTIONS_PER_POOL, POOLS_MAX), 1);
	for (int i = 0; i < npools; i++)
	{
		OutboxHttpPool *pool = &pools[i];

		pool->index = i;
		pool->timer_at = OUTBOX_HTTP_NEVER;
		pool->multi = curl_multi_init();
		if (pool->multi == NULL || !outbox_http_watch_pool(pool) ||
			curl_multi_setopt(pool->multi, CURLMOPT_TIMERDATA, pool) != CURLM_OK ||
			curl_multi_setopt(pool->multi, CURLMOPT_TIMERFUNCTION, set_timer) !=
				CURLM_OK ||
			curl_multi_setopt(pool->multi, CURLMOPT_PIPELINING, CURLPIPE_MULTIPLEX) !=
				CURLM_OK)
			return false;
	}
	limit_each(limit);
	return true;
}

void
outbox_http_pools_shutdown(void)
{
	for (int i = 0; i < npools; i++)
	{
		curl_multi_cleanup(pools[i].multi);
		pools[i].multi = NULL;
	}
	npools = 0;
}

uint64
outbox_http_host_hash(const char *url)
{
	const char *begin = strstr(url, "://");
	size_t		len;

	begin = begin ? begin + 3 : url;
	len = strcspn(begin, "/?#");
	return hash_bytes_extended((const unsigned char *) begin, (int) len, 0);
}

CURLMcode
outbox_http_pool_add(OutboxTransfer *t)
{
	OutboxHttpPool *pool = &pools[t->host_hash % npools];
	CURLMcode		code;

	if (pool->running >= CONNECTIONS_PER_POOL)
		pool = &pools[(t->host_hash + (uint32) t->rest.endpoint) % npools];
	t->pool = pool;
	code = curl_multi_add_handle(pool->multi, t->easy);
	if (code != CURLM_OK)
		return code;
	pool->running++;
	pool->timer_at = 0; /* also if it was put off (http_rest.c) */
	return CURLM_OK;
}

void
outbox_http_pool_remove(OutboxTransfer *t)
{
	curl_multi_remove_handle(t->pool->multi, t->easy);
	t->pool->running--;
}

/* A handle that lacked memory may have forgotten a socket or its timer, for good. */
void
outbox_http_pool_act(int index, int fd, int mask, OutboxTransfer *user)
{
	const char *exceeded = fd == CURL_SOCKET_TIMEOUT ? NULL : outbox_http_peer_event(fd);
	int			running;

	if (curl_multi_socket_action(pools[index].multi, fd, mask, &running) ==
		CURLM_OUT_OF_MEMORY)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory: libcurl could not go on with its requests")));
	touched |= UINT64CONST(1) << index;
	if (exceeded == NULL && fd != CURL_SOCKET_TIMEOUT)
		exceeded = outbox_http_peer_ended();
	if (exceeded && user)
		user->exceeded = exceeded;
	else if (exceeded)
		pools[index].exceeded = exceeded;
}

static void
run_timer(OutboxHttpPool *pool, int64 now)
{
	if (pool->timer_at > now)
		return;
	pool->timer_at = OUTBOX_HTTP_NEVER;
	outbox_http_serves(0); /* until a callback says it */
	outbox_http_pool_act(pool->index, CURL_SOCKET_TIMEOUT, 0, NULL);
	pool->timer_at = outbox_http_rests_timer(pool->timer_at);
}

/*
 * A request that an event of the handle's sockets has begun already is not due any
 * more.
 */
void
outbox_http_pools_flush(void)
{
	static uint64 opened; /* until the flush before */
	int64		  now;

	if (added == 0)
		return;
	now = outbox_http_now();
	while (added != 0)
	{
		OutboxHttpPool *pool = &pools[pg_rightmost_one_pos64(added)];

		added &= added - 1;
		run_timer(pool, now);
	}
	nadded = 0;
	alone = outbox_http_opened != opened;
	opened = outbox_http_opened;
}

/*
 * To begin requests that find a connection costs little more for eight than for one.  A
 * request that connects takes much longer.  After one that did, each is begun alone until
 * one finds a connection, so that the time of a round is looked at in between.
 */
void
outbox_http_pool_added(OutboxHttpPool *pool)
{
	added |= UINT64CONST(1) << pool->index;
	if (++nadded >= TOGETHER || alone)
		outbox_http_pools_flush();
}

/* A handle may work for a millisecond each time, so the next ones wait when it is late. */
void
outbox_http_pools_run_timers(int64 until)
{
	static int next; /* the handle to begin with */
	int64	   now = outbox_http_now();

	outbox_http_pools_flush();
	for (int i = 0; i < npools && now <= until; i++)
	{
		OutboxHttpPool *pool = &pools[next];

		next = (next + 1) % npools;
		if (pool->timer_at > now)
			continue;
		run_timer(pool, now);
		now = outbox_http_now();
	}
}

int64
outbox_http_pools_next_timer(void)
{
	int64 at = OUTBOX_HTTP_NEVER;

	for (int i = 0; i < npools; i++)
		at = Min(at, pools[i].timer_at);
	return at;
}

bool
outbox_http_pools_may_have_ended(void)
{
	return touched != 0;
}

OutboxTransfer *
outbox_http_pools_next_ended(CURLcode *result)
{
	while (touched != 0)
	{
		int				index = pg_rightmost_one_pos64(touched);
		OutboxTransfer *t;
		CURLMsg		   *msg;
		int				left;

		while ((msg = curl_multi_info_read(pools[index].multi, &left)) != NULL)
			if (msg->msg == CURLMSG_DONE &&
				curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &t) == CURLE_OK)
			{
				*result = msg->data.result;
				if (t->set_version == CURL_HTTP_VERSION_2TLS && t->exceeded == NULL)
					t->exceeded = pools[index].exceeded;
				return t;
			}
		pools[index].exceeded = NULL;
		touched &= touched - 1;
	}
	return NULL;
}

bool
outbox_http_pools_are_scarce(int running)
{
	size_t most = outbox_memory_limit() / CONNECTIONS_SHARE;
	int	   idle = outbox_http_connections - running;

	return outbox_http_idle_bytes > most / 4 * 3 ||
		(idle > outbox_http_connections / IDLE_SHARE &&
		 (outbox_http_connections > (int64) limit * 3 / 4 ||
		  outbox_http_connections > (int64) limit - OUTBOX_WIDTH_FIRST));
}

/*
 * While there is room, a handle may keep all connections.  Without it, each handle closes
 * its oldest idle one when a request ends, until there is room again.  It begins a little
 * before the limit, because the requests under way open others.  Only idle ones count as
 * memory: to close them gives nothing back of what the requests under way take.
 */
void
outbox_http_pools_check_room(void)
{
	size_t used = outbox_http_idle_bytes;
	size_t most = outbox_memory_limit() / CONNECTIONS_SHARE;
	bool   over = outbox_http_connections > limit - limit / 16 || used > most - most / 16;
	bool   under = outbox_http_connections < limit - limit / 8 && used < most - most / 8;

	if (crowded ? !under : !over)
		return;
	crowded = !crowded;
	limit_each(crowded ? 1 : limit);
}
