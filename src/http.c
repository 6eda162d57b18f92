/*
 * http.c
 *	  Requests in flight: libcurl's multi interface behind one epoll fd.
 *
 * A transfer is in exactly one state.  It is handed out by acquire; start puts
 * it into libcurl, or lets it wait for the first request of its target; when
 * it has ended, 'done' is called and it is free again, with its handle, its
 * buffers and all options that need not be set twice.
 *
 * libcurl's callbacks only take notes.  They neither throw nor allocate with
 * palloc, because a longjmp through libcurl's frames is undefined.
 */
#include "http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "address.h"
#include "lib/ilist.h"

/* CURLOPT_PREREQFUNCTION, without which reused connections go unjudged. */
#if LIBCURL_VERSION_NUM < 0x075000
#error "outbox needs libcurl 7.80 or newer"
#endif

/*
 * Bounds on what a receiver can make us read.  The status decides, so that a
 * body is read only for its first bytes, and so that the connection can be
 * used again; a receiver that needs more than this loses the connection.
 */
#define HEADER_BYTES_MAX (64 * 1024)	/* 1xx answers and trailers included */
#define HEADER_LINES_MAX 1000
#define BODY_BYTES_MAX (64 * 1024)
#define BODY_TIME_MAX 1000		/* ms after the headers */

/* Idle connections are closed before usual receivers do it (60 s and more). */
#define CONNECTION_IDLE_MAX 50L /* s */
#define CONNECTION_LIFETIME_MAX 300L	/* s; also how long DNS can be outlived */
#define CA_CACHE_TIME 60L		/* s until a replaced CA file is read again */
#define THREADS_MAX 256			/* the process's, name lookups among them */
#define ROUNDS_MAX 16			/* of one outbox_http_poll() */

#define NEVER PG_INT64_MAX
#define HOST_BUCKETS 256

typedef enum State
{
	FREE,						/* on free_transfers */
	ACQUIRED,					/* on no list */
	WAITING,					/* on its host's list */
	UNSTARTED,					/* on unstarted: outcome known, 'done' is due */
	RUNNING,					/* in libcurl, on no list */
	ANSWERED					/* in libcurl, on answered: headers complete */
} State;

/*
 * What is known of a target while it has transfers.  Until somebody got
 * through to it, one transfer goes ahead and the others wait: a receiver that
 * speaks HTTP/2 gets one connection instead of one per request, and a name
 * whose lookup hangs costs one thread.  (libcurl's own PIPEWAIT queues all
 * targets in one line, where a stalled one holds up the others.)
 */
typedef struct Host
{
	dlist_node	node;			/* in its bucket; or on free_hosts */
	const void *key;			/* the target's address, never followed */
	int			in_flight;
	bool		open;			/* somebody got through, nobody failed since */
	OutboxTransfer *first;		/* goes ahead while not open */
	dlist_head	waiting;
	bool		is_ready;		/* on ready_hosts: may let waiting ones go */
	dlist_node	ready;
} Host;

struct OutboxTransfer
{
	dlist_node	node;
	OutboxTransfer *next_made;
	State		state;
	CURL	   *easy;
	OutboxHeaders headers;
	struct curl_slist *lines;	/* nodes that point into headers.buf */
	int			max_lines;

	/* What the handle is set to. */
	unsigned	generation;		/* of the settings */
	char	   *url;
	size_t		url_size;
	bool		plain;			/* http, not https */
	int			connect_timeout;
	int			timeout;

	/* The request under way. */
	Host	   *host;
	void	   *delivery;
	bool		tried;			/* an address was not refused */
	bool		connected;
	bool		crowded;		/* too many threads for another name lookup */
	bool		in_headers;
	bool		oversized;
	int			socket_errno;
	int			status;
	int			header_lines;
	size_t		header_bytes;
	size_t		body_bytes;
	const char *refused;		/* the range, or PLAIN_HTTP */
	int64		body_deadline;	/* 0: not set yet */
	OutboxOutcome outcome;
	char		errbuf[CURL_ERROR_SIZE];
};

static const char PLAIN_HTTP[] = "public";

/*
 * What epoll and libcurl want to know of our own sockets.  A registration for
 * reading outlives libcurl's interest, until an event comes that nobody wants:
 * a connection's next request then needs no system call.
 */
typedef struct Watch
{
	bool		ours;			/* else always told to epoll at once */
	unsigned char wanted;		/* EPOLLIN | EPOLLOUT */
	unsigned char registered;
} Watch;

static OutboxDone report;
static CURLM *multi;
static int	epoll_fd = -1;
static int64 timer_at = NEVER;	/* 0: now */
static Watch *watches;
static int	nwatches;

static unsigned generation = 1;
static bool use_proxy;
static bool have_http2;
static OutboxNetworks networks;

static OutboxTransfer *all_transfers;
static dlist_head free_transfers = DLIST_STATIC_INIT(free_transfers);
static dlist_head unstarted = DLIST_STATIC_INIT(unstarted);
static dlist_head answered = DLIST_STATIC_INIT(answered);
static dlist_head hosts[HOST_BUCKETS];
static dlist_head free_hosts = DLIST_STATIC_INIT(free_hosts);
static dlist_head ready_hosts = DLIST_STATIC_INIT(ready_hosts);

static bool signals_held;
static sigset_t signals_before;

static int64
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void
fail(OutboxTransfer *t, OutboxFailure failure, const char *words,
	 const char *detail)
{
	t->outcome.failure = failure;
	snprintf(t->outcome.error, sizeof(t->outcome.error), "%s%s%s",
			 words, detail[0] ? ": " : "", detail);
}

/*
 * Hosts
 */

static dlist_head *
host_bucket(const void *key)
{
	uint64		hash = (uint64) (uintptr_t) key * UINT64CONST(0x9E3779B97F4A7C15);

	return &hosts[hash >> 56];
}

static Host *
enter_host(const void *key)
{
	dlist_head *bucket = host_bucket(key);
	dlist_iter	iter;
	Host	   *host;

	dlist_foreach(iter, bucket)
	{
		host = dlist_container(Host, node, iter.cur);
		if (host->key == key)
		{
			host->in_flight++;
			return host;
		}
	}

	if (!dlist_is_empty(&free_hosts))
		host = dlist_container(Host, node, dlist_pop_head_node(&free_hosts));
	else if ((host = malloc(sizeof(Host))) == NULL)
		return NULL;
	memset(host, 0, sizeof(Host));
	dlist_init(&host->waiting);
	host->key = key;
	host->in_flight = 1;
	dlist_push_head(bucket, &host->node);
	return host;
}

static void
host_is_ready(Host *host)
{
	if (!host->is_ready && !dlist_is_empty(&host->waiting))
	{
		host->is_ready = true;
		dlist_push_tail(&ready_hosts, &host->ready);
	}
}

/* The transfer is out of libcurl and out of its host's list. */
static void
leave_host(OutboxTransfer *t)
{
	Host	   *host = t->host;

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

/*
 * Callbacks of libcurl
 */

/* May a request of this transfer go there?  If not, takes a note of why. */
static bool
may_go(OutboxTransfer *t, const struct sockaddr *sa)
{
	const char *why;
	OutboxAddressVerdict verdict = outbox_address_judge(sa, &networks, &why);

	if (verdict == OUTBOX_ADDRESS_ALLOWED ||
		(verdict == OUTBOX_ADDRESS_PUBLIC && !t->plain))
		return true;
	t->refused = verdict == OUTBOX_ADDRESS_REFUSED ? why : PLAIN_HTTP;
	return false;
}

static void
watch_own_socket(int fd)
{
	if (fd >= nwatches)
	{
		int			n = Max(nwatches * 2, fd + 64);
		Watch	   *bigger = realloc(watches, n * sizeof(Watch));

		if (bigger == NULL)
			return;				/* slower, but as good */
		memset(bigger + nwatches, 0, (n - nwatches) * sizeof(Watch));
		watches = bigger;
		nwatches = n;
	}
	memset(&watches[fd], 0, sizeof(Watch));
	watches[fd].ours = true;
}

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	OutboxTransfer *t = arg;
	int			fd;

	(void) purpose;
	/* The proxy's own address is the superuser's choice. */
	if ((t->plain || !use_proxy) && !may_go(t, &address->addr))
		return CURL_SOCKET_BAD;
	t->tried = true;
	fd = socket(address->family, address->socktype | SOCK_CLOEXEC,
				address->protocol);
	if (fd < 0)
	{
		/* A missing address family is the address's fault. */
		if (errno != EAFNOSUPPORT)
			t->socket_errno = errno;
		return CURL_SOCKET_BAD;
	}
	watch_own_socket(fd);
	return fd;
}

static int
close_socket(void *arg, curl_socket_t fd)
{
	(void) arg;
	if (fd < nwatches)
		memset(&watches[fd], 0, sizeof(Watch));
	return close(fd);
}

static void
tell_epoll(int op, int fd, uint32 events)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = events;
	event.data.fd = fd;
	if (epoll_ctl(epoll_fd, op, fd, &event) != 0 &&
		op == EPOLL_CTL_MOD && errno == ENOENT)
		epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void
set_registered(int fd, unsigned char events)
{
	Watch	   *w = &watches[fd];

	if (w->registered == events)
		return;
	tell_epoll(w->registered == 0 ? EPOLL_CTL_ADD :
			   events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, fd, events);
	w->registered = events;
}

static int
want_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
	unsigned char wanted = 0;

	(void) easy;
	(void) arg;
	(void) socket_arg;
	if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
		wanted |= EPOLLIN;
	if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
		wanted |= EPOLLOUT;

	if (fd < nwatches && watches[fd].ours)
	{
		watches[fd].wanted = wanted;
		set_registered(fd, wanted | (watches[fd].registered & EPOLLIN));
	}
	else
		tell_epoll(wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, fd, wanted);
	return 0;
}

static int
set_timer(CURLM *m, long ms, void *arg)
{
	(void) m;
	(void) arg;
	timer_at = ms < 0 ? NEVER : ms == 0 ? 0 : now_ms() + ms;
	return 0;
}

/*
 * A name is about to be looked up, in a thread that libcurl starts and, when
 * the request times out first, leaves behind.  It inherits our signal mask:
 * PostgreSQL's handlers must never run there.
 */
static int
before_lookup(void *resolver, void *reserved, void *arg)
{
	OutboxTransfer *t = arg;
	struct stat tasks;

	(void) resolver;
	(void) reserved;
	if (stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink > THREADS_MAX)
	{
		t->crowded = true;
		return 1;
	}
	if (!signals_held)
	{
		sigset_t	all;

		sigfillset(&all);
		signals_held = sigprocmask(SIG_SETMASK, &all, &signals_before) == 0;
	}
	return 0;
}

/* There is a connection, new or reused, and nothing was sent on it yet. */
static int
before_request(void *arg, char *ip, char *local_ip, int port, int local_port)
{
	OutboxTransfer *t = arg;

	(void) local_ip;
	(void) port;
	(void) local_port;
	t->connected = true;
	if (t->plain || !use_proxy)
	{
		union
		{
			struct sockaddr sa;
			struct sockaddr_in v4;
			struct sockaddr_in6 v6;
		}			address;

		memset(&address, 0, sizeof(address));
		if (inet_pton(AF_INET, ip, &address.v4.sin_addr) == 1)
			address.sa.sa_family = AF_INET;
		else if (inet_pton(AF_INET6, ip, &address.v6.sin6_addr) == 1)
			address.sa.sa_family = AF_INET6;
		if (!may_go(t, &address.sa))
		{
			t->tried = false;
			return CURL_PREREQFUNC_ABORT;
		}
	}
	if (!t->host->open)
	{
		t->host->open = true;
		host_is_ready(t->host);
	}
	return CURL_PREREQFUNC_OK;
}

/* The value of a header line if it has that name, else NULL. */
static const char *
header_value(const char *line, size_t len, const char *name, size_t *value_len)
{
	size_t		namelen = strlen(name);

	if (len <= namelen || line[namelen] != ':' ||
		strncasecmp(line, name, namelen) != 0)
		return NULL;
	line += namelen + 1;
	len -= namelen + 1;
	while (len > 0 && (*line == ' ' || *line == '\t'))
	{
		line++;
		len--;
	}
	while (len > 0 && strchr(" \t\r\n", line[len - 1]))
		len--;
	*value_len = len;
	return line;
}

static size_t
take_header(char *line, size_t size, size_t n, void *arg)
{
	OutboxTransfer *t = arg;
	const char *value;
	size_t		len = size * n;
	size_t		vlen;

	t->header_bytes += len;
	if (t->header_bytes > HEADER_BYTES_MAX ||
		++t->header_lines > HEADER_LINES_MAX)
	{
		t->oversized = true;
		return 0;
	}
	if (t->state != RUNNING)
		return len;				/* a trailer */

	if (!t->in_headers)
	{
		/* The status line: "HTTP/1.1 204 No Content" */
		size_t		i = 0;

		t->in_headers = true;
		t->status = 0;
		while (i < len && line[i] != ' ')
			i++;
		for (i++; i < len && line[i] >= '0' && line[i] <= '9' && t->status < 1000; i++)
			t->status = t->status * 10 + (line[i] - '0');
		return len;
	}

	switch (line[0])
	{
		case '\r':
		case '\n':
			t->in_headers = false;
			if (t->status >= 200)
			{
				t->state = ANSWERED;
				t->body_deadline = 0;
				dlist_push_tail(&answered, &t->node);
			}
			else
			{
				/* An interim answer's headers mean nothing. */
				t->outcome.retry_after = -1;
				t->outcome.disable = t->outcome.abort_message = false;
			}
			break;
		case 'R':
		case 'r':
			value = header_value(line, len, "retry-after", &vlen);
			if (value)
				t->outcome.retry_after =
					outbox_http_retry_after(value, vlen, (int64) time(NULL));
			break;
		case 'W':
		case 'w':
			value = header_value(line, len, "webhook-delivery", &vlen);
			if (value && vlen == 7 && strncasecmp(value, "disable", 7) == 0)
				t->outcome.disable = true;
			else if (value && vlen == 13 &&
					 strncasecmp(value, "abort-message", 13) == 0)
				t->outcome.abort_message = true;
			break;
	}
	return len;
}

static size_t
take_body(char *data, size_t size, size_t n, void *arg)
{
	OutboxTransfer *t = arg;
	OutboxOutcome *o = &t->outcome;
	size_t		len = size * n;

	if (t->state != ANSWERED)
		return 0;
	if (t->status < 200 || t->status > 299)
	{
		size_t		kept = Min(len, sizeof(o->body) - o->body_len);

		memcpy(o->body + o->body_len, data, kept);
		o->body_len += kept;
	}
	t->body_bytes += len;
	return t->body_bytes > BODY_BYTES_MAX ? 0 : len;
}

/*
 * Handles
 */

/* What follows from the settings; again after each reload. */
static bool
set_settings(CURL *easy)
{
	const char *ca = outbox_ssl_ca_file;
	const char *cert = outbox_ssl_cert_file;
	const char *key = outbox_ssl_key_file;
	long		version = outbox_ssl_min_protocol_version == OUTBOX_TLS_1_3 ?
		CURL_SSLVERSION_TLSv1_3 : CURL_SSLVERSION_TLSv1_2;

	/* Without a file of its own, a handle keeps the system's bundle. */
	if (ca && ca[0] && curl_easy_setopt(easy, CURLOPT_CAINFO, ca) != CURLE_OK)
		return false;
	return
		curl_easy_setopt(easy, CURLOPT_SSLVERSION, version) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_SSLCERT,
						 cert && cert[0] ? cert : NULL) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_SSLKEY,
						 key && key[0] ? key : NULL) == CURLE_OK;
}

/* What never changes. */
static bool
set_constants(OutboxTransfer *t)
{
	static const struct
	{
		CURLoption	option;
		long		value;
	}			numbers[] = {
		{CURLOPT_POST, 1},
		{CURLOPT_NOSIGNAL, 1},
		{CURLOPT_FOLLOWLOCATION, 0},
		{CURLOPT_NETRC, CURL_NETRC_IGNORED},
		{CURLOPT_DISALLOW_USERNAME_IN_URL, 1},
		{CURLOPT_HTTP09_ALLOWED, 0},
		{CURLOPT_SUPPRESS_CONNECT_HEADERS, 1},
		{CURLOPT_HEADEROPT, CURLHEADER_SEPARATE},
		{CURLOPT_SSL_VERIFYPEER, 1},
		{CURLOPT_SSL_VERIFYHOST, 2},
		{CURLOPT_PROXY_SSL_VERIFYPEER, 1},
		{CURLOPT_PROXY_SSL_VERIFYHOST, 2},
		{CURLOPT_TCP_NODELAY, 1},
		{CURLOPT_TCP_KEEPALIVE, 1},
		{CURLOPT_MAXAGE_CONN, CONNECTION_IDLE_MAX},
		{CURLOPT_MAXLIFETIME_CONN, CONNECTION_LIFETIME_MAX},
		{CURLOPT_UPLOAD_BUFFERSIZE, 16 * 1024},
#if LIBCURL_VERSION_NUM >= 0x075700
		{CURLOPT_QUICK_EXIT, 1},
		{CURLOPT_CA_CACHE_TIMEOUT, CA_CACHE_TIME},
#endif
#if LIBCURL_VERSION_NUM < 0x075500
		{CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS},
#endif
	};
	CURL	   *easy = t->easy;
	bool		ok = true;

	for (size_t i = 0; i < lengthof(numbers); i++)
		ok = ok && curl_easy_setopt(easy, numbers[i].option, numbers[i].value) == CURLE_OK;

#define SET(option, value) \
	ok = ok && curl_easy_setopt(easy, option, value) == CURLE_OK
#if LIBCURL_VERSION_NUM >= 0x075500
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
#endif
	SET(CURLOPT_NOPROXY, "");	/* nor is $no_proxy heard */
	SET(CURLOPT_PRIVATE, t);
	SET(CURLOPT_ERRORBUFFER, t->errbuf);
	SET(CURLOPT_HEADERFUNCTION, take_header);
	SET(CURLOPT_HEADERDATA, t);
	SET(CURLOPT_WRITEFUNCTION, take_body);
	SET(CURLOPT_WRITEDATA, t);
	SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
	SET(CURLOPT_OPENSOCKETDATA, t);
	SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
	SET(CURLOPT_PREREQFUNCTION, before_request);
	SET(CURLOPT_PREREQDATA, t);
	SET(CURLOPT_RESOLVER_START_FUNCTION, before_lookup);
	SET(CURLOPT_RESOLVER_START_DATA, t);
#undef SET
	return ok;
}

/* A fresh handle; the old one, if any, goes. */
static bool
make_handle(OutboxTransfer *t)
{
	curl_easy_cleanup(t->easy);
	t->easy = curl_easy_init();
	if (t->easy == NULL || !set_constants(t) || !set_settings(t->easy))
	{
		curl_easy_cleanup(t->easy);
		t->easy = NULL;
		return false;
	}
	t->generation = generation;
	if (t->url)
		t->url[0] = '\0';
	t->connect_timeout = t->timeout = -1;
	return true;
}

static bool
set_url(OutboxTransfer *t, const char *url)
{
	size_t		size = strlen(url) + 1;

	if (t->url_size < size)
	{
		char	   *bigger = realloc(t->url, size);

		if (bigger == NULL)
			return false;
		t->url = bigger;
		t->url_size = size;
	}
	t->url[0] = '\0';			/* unknown, until all of it is set */

	/*
	 * Plain http goes to allowed networks only, and is judged by the final
	 * address, which a proxy would hide: it never takes the proxy.
	 */
	t->plain = strncasecmp(url, "http:", 5) == 0;
	if (curl_easy_setopt(t->easy, CURLOPT_URL, url) != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_PROXY,
						 use_proxy && !t->plain ? outbox_proxy : "") != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_HTTP_VERSION,
						 t->plain || !have_http2 ? (long) CURL_HTTP_VERSION_1_1 :
						 (long) CURL_HTTP_VERSION_2TLS) != CURLE_OK)
		return false;
	memcpy(t->url, url, size);
	return true;
}

/* Everything of a request that the handle does not have yet. */
static bool
set_request(OutboxTransfer *t, const OutboxTarget *target,
			const char *body, size_t body_len)
{
	static char no_expect[] = "Expect:";
	OutboxHeaders *h = &t->headers;

	if (t->generation != generation && !make_handle(t))
		return false;
	if ((t->url == NULL || strcmp(t->url, target->url) != 0) &&
		!set_url(t, target->url))
		return false;
	if (t->connect_timeout != target->connect_timeout)
	{
		if (curl_easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT_MS,
							 (long) target->connect_timeout) != CURLE_OK)
			return false;
		t->connect_timeout = target->connect_timeout;
	}
	if (t->timeout != target->timeout)
	{
		if (curl_easy_setopt(t->easy, CURLOPT_TIMEOUT_MS,
							 (long) target->timeout) != CURLE_OK)
			return false;
		t->timeout = target->timeout;
	}

	if (h->n + 1 > t->max_lines)
	{
		int			max = h->max + 1;
		struct curl_slist *bigger = realloc(t->lines, max * sizeof(*bigger));

		if (bigger == NULL)
			return false;
		t->lines = bigger;
		t->max_lines = max;
	}
	for (int i = 0; i < h->n; i++)
	{
		t->lines[i].data = h->buf + h->start[i];
		t->lines[i].next = &t->lines[i + 1];
	}
	t->lines[h->n].data = no_expect;
	t->lines[h->n].next = NULL;
	return curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->lines) == CURLE_OK &&
		curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, body ? body : "") == CURLE_OK &&
		curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE,
						 (curl_off_t) body_len) == CURLE_OK;
}

OutboxTransfer *
outbox_http_acquire(void)
{
	OutboxTransfer *t;

	if (!dlist_is_empty(&free_transfers))
		t = dlist_container(OutboxTransfer, node,
							dlist_pop_head_node(&free_transfers));
	else
	{
		t = calloc(1, sizeof(*t));
		if (t == NULL)
			return NULL;
		if (!make_handle(t))
		{
			free(t);
			return NULL;
		}
		t->next_made = all_transfers;
		all_transfers = t;
	}
	t->state = ACQUIRED;
	outbox_headers_reset(&t->headers);
	return t;
}

OutboxHeaders *
outbox_http_headers(OutboxTransfer *t)
{
	return &t->headers;
}

void
outbox_http_release(OutboxTransfer *t)
{
	t->state = FREE;
	dlist_push_head(&free_transfers, &t->node);
}

/*
 * Starting and ending
 */

static void
end_unstarted(OutboxTransfer *t)
{
	t->state = UNSTARTED;
	dlist_push_tail(&unstarted, &t->node);
}

static void
launch(OutboxTransfer *t)
{
	CURLMcode	code = curl_multi_add_handle(multi, t->easy);

	if (code == CURLM_OK)
		t->state = RUNNING;
	else
	{
		fail(t, OUTBOX_FAILURE_INTERNAL, "could not start the request",
			 curl_multi_strerror(code));
		end_unstarted(t);
	}
}

void
outbox_http_start(OutboxTransfer *t, const OutboxTarget *target,
				  const char *body, size_t body_len, void *delivery)
{
	OutboxOutcome *o = &t->outcome;
	const char *complaint;
	const char *hint;

	t->delivery = delivery;
	t->tried = t->connected = t->crowded = false;
	t->in_headers = t->oversized = false;
	t->socket_errno = t->status = t->header_lines = 0;
	t->header_bytes = t->body_bytes = 0;
	t->refused = NULL;
	t->errbuf[0] = '\0';
	o->status = 0;
	o->failure = OUTBOX_FAILURE_NONE;
	o->error[0] = '\0';
	o->body_len = 0;
	o->retry_after = -1;
	o->disable = o->abort_message = false;
	o->duration = 0;

	t->host = enter_host(target);
	if (t->host == NULL || !set_request(t, target, body, body_len))
	{
		fail(t, OUTBOX_FAILURE_INTERNAL, "could not prepare the request",
			 "out of memory");
		end_unstarted(t);
	}
	else if (use_proxy && !t->plain &&
			 (complaint = outbox_http_check_url(t->url, &hint)) != NULL)
	{
		/* Behind a proxy only a literal address can be judged. */
		fail(t, OUTBOX_FAILURE_ADDRESS, complaint, hint ? hint : "");
		end_unstarted(t);
	}
	else if (t->host->open)
		launch(t);
	else if (t->host->first == NULL)
	{
		t->host->first = t;
		launch(t);
	}
	else
	{
		t->state = WAITING;
		dlist_push_tail(&t->host->waiting, &t->node);
	}
}

/* Takes the transfer from wherever it is; it is on no list then. */
static void
withdraw(OutboxTransfer *t)
{
	if (t->state == RUNNING || t->state == ANSWERED)
		curl_multi_remove_handle(multi, t->easy);
	if (t->state != RUNNING && t->state != ACQUIRED)
		dlist_delete(&t->node);
	t->state = ACQUIRED;
}

void
outbox_http_cancel(OutboxTransfer *t)
{
	withdraw(t);
	leave_host(t);
	outbox_http_release(t);
}

/* An answer that is none: why, in words. */
static void
explain(OutboxTransfer *t, CURLcode code)
{
	char		detail[192];
	long		number = 0;
	curl_off_t	lookup = 0;
	int			ms;

	switch (code)
	{
		case CURLE_COULDNT_RESOLVE_PROXY:
		case CURLE_COULDNT_RESOLVE_HOST:
			fail(t, OUTBOX_FAILURE_DNS,
				 code == CURLE_COULDNT_RESOLVE_PROXY ?
				 "could not resolve the proxy's name" : "could not resolve host",
				 t->crowded ? "too many lookups are still waiting for an answer" : "");
			break;

		case CURLE_COULDNT_CONNECT:
		case CURLE_ABORTED_BY_CALLBACK:
			if (t->refused == PLAIN_HTTP && !t->tried)
				fail(t, OUTBOX_FAILURE_ADDRESS,
					 "plain http goes to addresses in outbox.allowed_networks only",
					 "");
			else if (t->refused && !t->tried)
			{
				const char *hint;

				snprintf(detail, sizeof(detail),
						 "%s is %s, and outbox.allowed_networks does not name it",
						 outbox_http_check_url(t->url, &hint) ?
						 "the address in the URL" :
						 "the address that the name resolves to", t->refused);
				fail(t, OUTBOX_FAILURE_ADDRESS, detail, "");
			}
			else if (t->socket_errno)
				fail(t, OUTBOX_FAILURE_INTERNAL, "could not open a socket",
					 strerror(t->socket_errno));
			else
			{
				curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &number);
				fail(t, OUTBOX_FAILURE_CONNECT, "could not connect",
					 number ? strerror((int) number) : "");
			}
			break;

		case CURLE_OPERATION_TIMEDOUT:
			curl_easy_getinfo(t->easy, CURLINFO_NAMELOOKUP_TIME_T, &lookup);
			ms = t->connected ? t->timeout : Min(t->connect_timeout, t->timeout);
			snprintf(detail, sizeof(detail), "after %g s%s", ms / 1000.0,
					 t->connected ? "" : lookup ? " while connecting" :
					 " while resolving the host");
			snprintf(t->outcome.error, sizeof(t->outcome.error),
					 "timed out %s", detail);
			t->outcome.failure = t->connected || lookup ?
				OUTBOX_FAILURE_TIMEOUT : OUTBOX_FAILURE_DNS;
			break;

		case CURLE_SSL_CONNECT_ERROR:
		case CURLE_PEER_FAILED_VERIFICATION:
		case CURLE_SSL_CERTPROBLEM:
		case CURLE_SSL_CIPHER:
		case CURLE_SSL_CACERT_BADFILE:
		case CURLE_SSL_CRL_BADFILE:
		case CURLE_SSL_ISSUER_ERROR:
		case CURLE_SSL_INVALIDCERTSTATUS:
		case CURLE_SSL_CLIENTCERT:
		case CURLE_SSL_ENGINE_NOTFOUND:
		case CURLE_SSL_ENGINE_SETFAILED:
		case CURLE_SSL_ENGINE_INITFAILED:
		case CURLE_USE_SSL_FAILED:
			fail(t, OUTBOX_FAILURE_TLS, "TLS",
				 t->errbuf[0] ? t->errbuf : curl_easy_strerror(code));
			break;

		case CURLE_OK:
		case CURLE_GOT_NOTHING:
		case CURLE_SEND_ERROR:
		case CURLE_RECV_ERROR:
		case CURLE_PARTIAL_FILE:
		case CURLE_PROXY:
			curl_easy_getinfo(t->easy, CURLINFO_HTTP_CONNECTCODE, &number);
			if (!t->connected && number >= 300)
			{
				snprintf(detail, sizeof(detail), "the proxy answered %ld", number);
				fail(t, OUTBOX_FAILURE_CONNECT, detail, "");
				break;
			}
			fail(t, OUTBOX_FAILURE_CLOSED,
				 "the connection was closed before the answer", "");
			break;

		case CURLE_WRITE_ERROR:
		case CURLE_UNSUPPORTED_PROTOCOL:
		case CURLE_WEIRD_SERVER_REPLY:
		case CURLE_BAD_CONTENT_ENCODING:
		case CURLE_HTTP2:
		case CURLE_HTTP2_STREAM:
			fail(t, OUTBOX_FAILURE_PROTOCOL, t->oversized ?
				 "the header of the answer is too long" :
				 "the answer is not valid HTTP",
				 t->oversized || code == CURLE_WRITE_ERROR ? "" : t->errbuf);
			break;

		default:
			fail(t, OUTBOX_FAILURE_INTERNAL, "libcurl", curl_easy_strerror(code));
			break;
	}
}

static void
finish(OutboxTransfer *t, CURLcode code)
{
	OutboxOutcome *o = &t->outcome;
	Host	   *host = t->host;
	bool		was_answered = t->state == ANSWERED;
	curl_off_t	duration = 0;

	curl_easy_getinfo(t->easy, CURLINFO_TOTAL_TIME_T, &duration);
	o->duration = duration / 1000.0;
	if (was_answered)
	{
		/* Whatever happened after the headers changes nothing. */
		o->status = t->status;
		if (o->status < 200 || o->status > 299)
			snprintf(o->error, sizeof(o->error), "the receiver answered %d%s",
					 o->status, o->status >= 300 && o->status < 400 ?
					 ", and redirects are not followed" : "");
	}
	else
		explain(t, code);
	withdraw(t);

	if (!was_answered)
	{
		/* Those that waited for this connection share its fate. */
		if (host->first == t && !host->open)
		{
			while (!dlist_is_empty(&host->waiting))
			{
				OutboxTransfer *w = dlist_container(OutboxTransfer, node,
													dlist_pop_head_node(&host->waiting));

				fail(w, o->failure, o->error, "");
				w->outcome.duration = o->duration;
				end_unstarted(w);
			}
		}
		host->open = false;
	}
	leave_host(t);
	report(t->delivery, o);
	outbox_http_release(t);
}

/*
 * The loop
 */

static void
act(int fd, int mask)
{
	int			running;

	curl_multi_socket_action(multi, fd, mask, &running);
	if (signals_held)
	{
		sigprocmask(SIG_SETMASK, &signals_before, NULL);
		signals_held = false;
	}
}

static void
on_event(const struct epoll_event *event)
{
	int			fd = event->data.fd;
	int			mask = 0;

	if (fd < nwatches && watches[fd].ours)
	{
		Watch	   *w = &watches[fd];

		/* Something that nobody waits for any more, see Watch. */
		if (w->registered != w->wanted)
			set_registered(fd, w->wanted);
		if (w->wanted == 0)
			return;
	}
	/* Errors are found, with their reason, by whoever reads. */
	if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		mask |= CURL_CSELECT_IN;
	if (event->events & EPOLLOUT)
		mask |= CURL_CSELECT_OUT;
	act(fd, mask);
}

/* Lets go who waited for the first of its target. */
static void
start_waiting(void)
{
	while (!dlist_is_empty(&ready_hosts))
	{
		Host	   *host = dlist_container(Host, ready,
										   dlist_pop_head_node(&ready_hosts));

		host->is_ready = false;
		while (!dlist_is_empty(&host->waiting) &&
			   (host->open || host->first == NULL))
		{
			OutboxTransfer *t = dlist_container(OutboxTransfer, node,
												dlist_pop_head_node(&host->waiting));

			if (!host->open)
				host->first = t;
			launch(t);
		}
	}
}

static void
report_unstarted(void)
{
	while (!dlist_is_empty(&unstarted))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_head_node(&unstarted));

		withdraw(t);
		leave_host(t);
		report(t->delivery, &t->outcome);
		outbox_http_release(t);
	}
}

/* Answers whose body takes too long have been good enough. */
static void
bound_bodies(void)
{
	dlist_iter	iter;
	int64		now;

	if (dlist_is_empty(&answered))
		return;
	now = now_ms();
	dlist_reverse_foreach(iter, &answered)
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node, iter.cur);

		if (t->body_deadline != 0)
			break;
		t->body_deadline = now + BODY_TIME_MAX;
	}
	while (!dlist_is_empty(&answered))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_head_node(&answered));

		if (t->body_deadline == 0 || t->body_deadline > now)
			break;
		finish(t, CURLE_OK);
	}
}

void
outbox_http_poll(void)
{
	struct epoll_event events[128];
	int			n = lengthof(events);

	for (int round = 0; round < ROUNDS_MAX; round++)
	{
		CURLMsg    *msg;
		int			left;

		if (n == lengthof(events))
		{
			n = epoll_wait(epoll_fd, events, lengthof(events), 0);
			for (int i = 0; i < n; i++)
				on_event(&events[i]);
		}
		if (timer_at == 0 || (timer_at != NEVER && timer_at <= now_ms()))
		{
			timer_at = NEVER;
			act(CURL_SOCKET_TIMEOUT, 0);
		}
		while ((msg = curl_multi_info_read(multi, &left)) != NULL)
		{
			OutboxTransfer *t;

			if (msg->msg == CURLMSG_DONE &&
				curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &t) == CURLE_OK)
				finish(t, msg->data.result);
		}
		bound_bodies();
		report_unstarted();
		start_waiting();
		if (n < (int) lengthof(events) && timer_at != 0 &&
			dlist_is_empty(&unstarted))
			break;
	}
}

int
outbox_http_fd(void)
{
	return epoll_fd;
}

long
outbox_http_timeout(void)
{
	int64		at = timer_at;
	int64		now;

	if (at == 0 || !dlist_is_empty(&unstarted) || !dlist_is_empty(&ready_hosts))
		return 0;
	if (!dlist_is_empty(&answered))
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_head_node(&answered));

		at = Min(at, t->body_deadline);
	}
	if (at == NEVER)
		return -1;
	now = now_ms();
	return at <= now ? 0 : (long) Min(at - now, PG_INT32_MAX);
}

/*
 * The worker's settings
 */

void
outbox_http_reload(void)
{
	struct rlimit limit;
	char		bad[64];
	int64		connections = (int64) outbox_worker_max_in_flight * 2;

	generation++;
	use_proxy = outbox_proxy && outbox_proxy[0];
	if (!outbox_networks_parse(outbox_allowed_networks ? outbox_allowed_networks : "",
							   &networks, bad, sizeof(bad)))
		ereport(WARNING,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid network in outbox.allowed_networks: \"%s\"", bad),
				 errdetail("No private network is allowed until this is corrected."),
				 errhint("Write networks as 10.1.0.0/16 or fd00::/8, separated by commas.")));

	/* Idle connections must not use up the file descriptors. */
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		connections = Min(connections, (int64) (limit.rlim_cur / 2));
	curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long) Max(connections, 1));
}

void
outbox_http_init(OutboxDone done)
{
	OutboxTransfer *t;
	bool		ok;

	report = done;
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not initialize libcurl"),
				 errhint("Check that libcurl and its TLS library are installed completely.")));
	have_http2 = (curl_version_info(CURLVERSION_NOW)->features & CURL_VERSION_HTTP2) != 0;
	for (int i = 0; i < HOST_BUCKETS; i++)
		dlist_init(&hosts[i]);

	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not create an epoll descriptor: %m"),
				 errhint("Raise the limit of open files (ulimit -n) of the server.")));

	multi = curl_multi_init();
	ok = multi != NULL &&
		curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, want_socket) == CURLM_OK &&
		curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, set_timer) == CURLM_OK &&
		curl_multi_setopt(multi, CURLMOPT_PIPELINING, CURLPIPE_MULTIPLEX) == CURLM_OK;
	if (ok)
		outbox_http_reload();

	/* A libcurl that misses an option is found now, not at the first event. */
	t = ok ? outbox_http_acquire() : NULL;
	if (t == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not set up libcurl %s", curl_version_info(CURLVERSION_NOW)->version),
				 errhint("outbox needs libcurl 7.80 or newer with TLS, and not older than the one it was built with.")));
	outbox_http_release(t);
}

void
outbox_http_shutdown(void)
{
	/* All of them are off their lists before any of them is freed. */
	for (OutboxTransfer *t = all_transfers; t != NULL; t = t->next_made)
		if (t->state != FREE && t->state != ACQUIRED)
			outbox_http_cancel(t);
	while (all_transfers)
	{
		OutboxTransfer *t = all_transfers;

		all_transfers = t->next_made;
		curl_easy_cleanup(t->easy);
		free(t->headers.buf);
		free(t->headers.start);
		free(t->lines);
		free(t->url);
		free(t);
	}
	dlist_init(&free_transfers);
	while (!dlist_is_empty(&free_hosts))
		free(dlist_container(Host, node, dlist_pop_head_node(&free_hosts)));
	curl_multi_cleanup(multi);
	multi = NULL;
	close(epoll_fd);
	epoll_fd = -1;
	free(watches);
	watches = NULL;
	nwatches = 0;
	curl_global_cleanup();
}
