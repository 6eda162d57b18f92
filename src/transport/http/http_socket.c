/*
 * http_socket.c
 *	  Owns libcurl's sockets and the epoll descriptor that they are registered with.
 */
#include "base/memory.h"
#include "transport/http/http_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/*
 * The events that epoll and libcurl wait for, of each socket that was opened here.  The
 * registration for reading is kept when libcurl does not want it any more, until an
 * unwanted event comes.  So the next request on a connection needs no system call.
 * The registration for writing is given up while writing brings nothing, until the next
 * event.
 */
typedef struct Watch
{
	bool			ours;	/* false: each change is passed to epoll at once */
	unsigned char	kind;	/* OutboxHttpSocket */
	unsigned char	pool;	/* whose socket it is: an event may be of an older one */
	unsigned char	wanted; /* EPOLLIN | EPOLLOUT */
	unsigned char	registered;
	bool			idle;	/* no request uses it */
	size_t			bytes;	/* of the worker's memory */
	OutboxTransfer *opener; /* for which it was opened, only to be compared */
	OutboxTransfer *user;	/* that wants it; NULL: none, or HTTP/2, which has several */
	int32			endpoint; /* whose request has used it last */
} Watch;

/*
 * Memory of an idle connection, at most.  With TLS it is mostly OpenSSL's, and the
 * certificates of the receiver.  libcurl 7.88 with OpenSSL 3.0 takes half of that, and
 * 8.14 with 3.5 nearly all of it.
 */
static const size_t bytes_of[] = {
	[OUTBOX_HTTP_PLAIN] = 6 * 1024,
	[OUTBOX_HTTP_TLS] = 104 * 1024,
	[OUTBOX_HTTP_TLS_2] = 160 * 1024,
};

/* The bytes that it takes beside that with a request in flight, at most. */
static const size_t more_in_flight[] = {
	[OUTBOX_HTTP_PLAIN] = 74 * 1024,
	[OUTBOX_HTTP_TLS] = 140 * 1024,
	[OUTBOX_HTTP_TLS_2] = 140 * 1024,
};

int	   outbox_http_connections;
uint64 outbox_http_opened;
size_t outbox_http_connections_bytes;
size_t outbox_http_idle_bytes;

/* ms for which a lack of descriptors may be the cause of what failed. */
#define LACK_COUNTS 2000

static int64  lacked_files_at = -LACK_COUNTS;
static int	  epoll_fd = -1;
static Watch *watches;
static int	  nwatches;

static int lookups_fd = -1;
bool	   outbox_http_lookups_ended;

static Watch *
watch_of(int fd)
{
	return fd >= 0 && fd < nwatches && watches[fd].ours ? &watches[fd] : NULL;
}

static void
set_bytes(Watch *w, size_t bytes)
{
	outbox_memory_account(&outbox_http_connections_bytes,
						  outbox_http_connections_bytes + bytes - w->bytes);
	outbox_memory_connections += bytes - w->bytes;
	if (w->idle)
		outbox_http_idle_bytes += bytes - w->bytes;
	w->bytes = bytes;
}

static void
set_idle(Watch *w, bool idle)
{
	if (w->idle == idle)
		return;
	w->idle = idle;
	if (idle)
		outbox_http_idle_bytes += w->bytes;
	else
		outbox_http_idle_bytes -= w->bytes;
}

void
outbox_http_socket_holds(int fd, size_t more)
{
	Watch *w = watch_of(fd);

	if (w)
		set_bytes(w, w->bytes + more);
}

/* Of two that were tried, the other one is closed when a handshake begins. */
int
outbox_http_socket_of(OutboxTransfer *t)
{
	for (int i = 0; i < 2; i++)
	{
		const Watch *w = watch_of(t->opened[i]);

		if (w && w->opener == t)
			return t->opened[i];
	}
	return -1;
}

/*
 * Records a socket that was just opened.  libcurl has not called want_socket() for it
 * yet.
 */
void
outbox_http_watch(OutboxTransfer *t, int fd, OutboxHttpSocket kind)
{
	if (fd >= nwatches)
	{
		int	   n = Max(nwatches * 2, fd + 64);
		Watch *bigger = realloc(watches, n * sizeof(Watch));

		if (bigger == NULL)
			return; /* then more system calls are needed for it */
		memset(bigger + nwatches, 0, (n - nwatches) * sizeof(Watch));
		watches = bigger;
		nwatches = n;
	}
	memset(&watches[fd], 0, sizeof(Watch));
	watches[fd].ours = true;
	watches[fd].kind = kind;
	watches[fd].opener = t;
	outbox_http_peer_rests(fd);
	outbox_http_connections++;
	outbox_http_opened++;
	set_bytes(&watches[fd], bytes_of[kind]);
	outbox_memory_connections += more_in_flight[kind];
}

int
outbox_http_close_socket(void *arg, curl_socket_t fd)
{
	int	   spare = dup(fd);
	Watch *w = watch_of(fd);

	if (spare < 0)
		lacked_files_at = outbox_http_now();
	else
		close(spare);
	if (w)
	{
		outbox_http_connections--;
		set_bytes(w, 0);
		outbox_memory_connections -= more_in_flight[w->kind];
		memset(w, 0, sizeof(Watch));
	}
	return close(fd);
}

bool
outbox_http_lacked_files(void)
{
	return outbox_http_now() < lacked_files_at + LACK_COUNTS;
}

static void
tell_epoll(int pool, int op, int fd, uint32 events)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = events;
	event.data.u64 = (uint64) pool << 32 | (uint32) fd;
	if (epoll_ctl(epoll_fd, op, fd, &event) != 0 && op == EPOLL_CTL_MOD &&
		errno == ENOENT)
		epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void
set_registered(int fd, unsigned char events)
{
	Watch *w = &watches[fd];

	if (w->registered == events)
		return;
	tell_epoll(w->pool,
			   w->registered == 0 ? EPOLL_CTL_ADD :
				   events == 0	  ? EPOLL_CTL_DEL :
									EPOLL_CTL_MOD,
			   fd, events);
	w->registered = events;
}

static int
want_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
	int				pool = ((OutboxHttpPool *) arg)->index;
	unsigned char	wanted = 0;
	Watch		   *w = watch_of(fd);
	OutboxTransfer *t = w ? w->user : NULL;
	bool			idle;

	if (t == NULL || t->easy != easy)
	{
		t = NULL;
		(void) curl_easy_getinfo(easy, CURLINFO_PRIVATE, &t);
	}
	/* A request that rests still uses its socket. */
	idle = what == CURL_POLL_REMOVE && !(t && t->rest.paused);
	if (idle)
		outbox_http_peer_rests(fd);
	if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
		wanted |= EPOLLIN;
	if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
		wanted |= EPOLLOUT;

	if (w)
	{
		if (t)
			w->endpoint = t->rest.endpoint;
		set_idle(w, idle);
		w->pool = pool;
		w->wanted = wanted;
		w->user = wanted && w->kind != OUTBOX_HTTP_TLS_2 ? t : NULL;
		set_registered(fd, wanted | (w->registered & EPOLLIN));
	}
	else
		tell_epoll(pool, wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, fd, wanted);
	return 0;
}

/* Passes one event to libcurl, unless it is not wanted any more. */
static void
on_event(const struct epoll_event *event,
		 void (*act)(int pool, int fd, int mask, OutboxTransfer *user))
{
	int				pool = (int) (event->data.u64 >> 32);
	int				fd = (int) (uint32) event->data.u64;
	int				mask = 0;
	OutboxTransfer *user = NULL;
	Watch		   *w = watch_of(fd);

	if (fd == lookups_fd)
	{
		outbox_http_lookups_ended = true;
		return;
	}
	if (w)
	{
		/* An event that is not wanted any more (see Watch). */
		if (w->registered != w->wanted)
			set_registered(fd, w->wanted);
		if (w->wanted == 0)
			return;
		pool = w->pool;
		user = w->user;
		outbox_http_serves(w->endpoint);
	}
	/* libcurl finds errors, and their reason, when it reads. */
	if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		mask |= CURL_CSELECT_IN;
	if (event->events & EPOLLOUT)
		mask |= CURL_CSELECT_OUT;
	act(pool, fd, mask, user);

	/* Before HTTP/2 writes again, something must come that allows it (see Watch). */
	w = watch_of(fd);
	if (mask == CURL_CSELECT_OUT && w && w->kind == OUTBOX_HTTP_TLS_2 &&
		w->wanted & EPOLLIN && outbox_http_peer_takes_nothing(fd))
		set_registered(fd, EPOLLIN);
}

bool
outbox_http_events(void (*act)(int pool, int fd, int mask, OutboxTransfer *user),
				   int64 until)
{
	struct epoll_event events[32];
	int				   n = epoll_wait(epoll_fd, events, lengthof(events), 0);
	int				   i;

	/* libcurl may read for a millisecond each time.  The other events come again. */
	for (i = 0; i < n && (i == 0 || outbox_http_now() <= until); i++)
		on_event(&events[i], act);
	return i < n || n == (int) lengthof(events);
}

bool
outbox_http_watch_lookups(int fd)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = EPOLLIN;
	lookups_fd = fd;
	event.data.u64 = (uint32) fd;
	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

int
outbox_http_fd(void)
{
	return epoll_fd;
}

bool
outbox_http_sockets_init(void)
{
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	return epoll_fd >= 0;
}

bool
outbox_http_watch_pool(OutboxHttpPool *pool)
{
	return curl_multi_setopt(pool->multi, CURLMOPT_SOCKETDATA, pool) == CURLM_OK &&
		curl_multi_setopt(pool->multi, CURLMOPT_SOCKETFUNCTION, want_socket) == CURLM_OK;
}

void
outbox_http_sockets_shutdown(void)
{
	if (epoll_fd >= 0)
		close(epoll_fd);
	epoll_fd = -1;
	free(watches);
	watches = NULL;
	nwatches = 0;
}
