/*
 * aws_http.c
 *	  Owns the connections to AWS: libcurl's handles, its sockets and its threads.
 *
 * libcurl signs requests.  Its signature is right for exactly one form, POST to the
 * path "/".  No other form is used.  Each address is judged before it is connected to,
 * and again before a connection is reused.  Proxies and redirections are not followed.
 *
 * libcurl looks up names in threads.  All signals are blocked while it makes one.
 */
#include "aws_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "../sink.h"
#include "aws_role_read.h"
#include "transport/libcurl.h"
#include "transport/polls.h"

/*
 * CURLOPT_QUICK_EXIT, without which the end of a request would wait for its lookup.
 */
#if LIBCURL_VERSION_NUM < 0x075700
#error "outbox_aws needs libcurl 7.87 or newer"
#endif

#define HEADERS_MAX (64 * 1024)	 /* bytes */
#define BODY_KEPT (64 * 1024)	 /* bytes of buffers that a free request keeps */
#define UNUSED_KEPT 64			 /* free requests */
#define HEAD_KEPT (4 * 1024)	 /* the same of what libcurl keeps of an answer */
#define CONNECTIONS_MAX 200L	 /* that stay open */
#define LOOKUPS_MAX 256			 /* a name without an answer holds one */
#define LOOKUP_LASTS (30 * 1000) /* ms: the system's resolver gives up, mostly */
#define NEVER (-1)

static OutboxServices services;
static CURLM		 *multi;
static int			  epoll_fd = -1;
static long long	  timer_at = NEVER; /* ms */
static OutboxPolls	  polls;
static char			 *ca_file;
static bool			  only_tls_1_3;
static unsigned		  generation;  /* of these two */
static long long	  reloaded_at; /* ms (0: not since the worker began) */
static AwsRequest	 *unused;
static int			  nunused;

/* The limit that the last such peer exceeded, in words, and whose request that was */
static const char *exceeded;
static int32_t	   exceeded_for;

/* Lookups of requests that wait for them, and when requests ended before theirs. */
static int		 nlookups;
static long long left_at[LOOKUPS_MAX];
static int		 first_left;
static int		 nleft;

static sigset_t former_signals;
static bool		signals_are_blocked;
static bool		lacked_memory; /* libcurl may have forgotten a socket, or its timer */

/* ---------------------------------------------------- libcurl's sockets */

static int
set_timer(CURLM *m, long ms, void *arg)
{
	timer_at = ms < 0 ? NEVER : sink_now_ms() + ms;
	return 0;
}

static int
want_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
	struct epoll_event event;
	AwsRequest		  *r = NULL;

	memset(&event, 0, sizeof(event));
	(void) curl_easy_getinfo(easy, CURLINFO_PRIVATE, &r);
	event.data.u64 = (uint64_t) (r ? r->rest.endpoint : 0) << 32 | (uint32_t) fd;
	if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
		event.events |= EPOLLIN;
	if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
		event.events |= EPOLLOUT;
	if (what == CURL_POLL_REMOVE)
	{
		/* A request that rests still uses its socket. */
		if (!(r && r->rest.paused))
			services.peer_rests(fd);
		epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event);
	}
	else if (known)
		epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event);
	else
	{
		epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
		curl_multi_assign(multi, fd, &epoll_fd);
	}
	return 0;
}

/* ------------------------------------------------------------- lookups */

static bool
may_look_up(void)
{
	for (; nleft > 0 && sink_now_ms() - left_at[first_left] >= LOOKUP_LASTS; nleft--)
		first_left = (first_left + 1) % LOOKUPS_MAX;
	return nlookups + nleft < LOOKUPS_MAX;
}

/* 'left': the thread goes on without its request. */
static void
end_lookup(AwsRequest *r, bool left)
{
	if (!r->looks_up)
		return;
	r->looks_up = false;
	nlookups--;
	if (left)
		left_at[(first_left + nleft++) % LOOKUPS_MAX] = sink_now_ms();
}

/* ---------------------------------------------------------- callbacks */

static bool
may_connect(AwsRequest *r, const struct sockaddr *address)
{
	const bool judged = r->metadata ?
		aws_role_may_connect(address) :
		services.may_connect(address, r->encrypted, &r->refused);

	if (judged)
	{
		r->refused = NULL;
		return true;
	}
	if (r->metadata)
		r->refused = "no address of a metadata service";
	sink_address_text(address, r->address, sizeof(r->address));
	return false;
}

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	/* Copied, because libcurl's storage may not be aligned for the wider types. */
	struct sockaddr_storage copy;
	int						fd;

	services.serves(((AwsRequest *) arg)->rest.endpoint);
	end_lookup(arg, false);
	memset(&copy, 0, sizeof(copy));
	if (address->addrlen > sizeof(copy))
		return CURL_SOCKET_BAD;
	memcpy(&copy, &address->addr, address->addrlen);
	if (!may_connect(arg, (struct sockaddr *) &copy))
		return CURL_SOCKET_BAD;
	fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
	if (fd < 0)
		return CURL_SOCKET_BAD;
	(void) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){OUTBOX_ANSWER_MAX}, sizeof(int));
	services.peer_rests(fd);
	return fd;
}

/*
 * There is a connection, new or reused, and nothing was sent over it yet.  If a reused one
 * ends without an answer, libcurl sends the request again.
 */
static int
before_request(void *arg, char *ip, char *local_ip, int port, int local_port)
{
	AwsRequest			   *r = arg;
	struct sockaddr_storage address = outbox_curl_address(ip);

	services.serves(r->rest.endpoint);
	services.rest_begins(&r->rest);
	if (!may_connect(r, (struct sockaddr *) &address))
		return CURL_PREREQFUNC_ABORT;
	r->connected = true;
	r->sent++;
	return CURL_PREREQFUNC_OK;
}

/*
 * A thread may be made for the lookup that follows.  aws_http_step() unblocks.  The signal
 * of the watchdog goes to no other thread in any case.  Of plain requests there are few.
 */
static int
before_lookup(void *resolver, void *reserved, void *arg)
{
	AwsRequest *r = arg;
	sigset_t	all;

	if (!r->plain && !r->looks_up)
	{
		r->lacks = !may_look_up();
		if (r->lacks)
			return 1;
		r->looks_up = true;
		nlookups++;
	}

	if (!signals_are_blocked)
	{
		sigfillset(&all);
		sigdelset(&all, SIGVTALRM);
		pthread_sigmask(SIG_SETMASK, &all, &former_signals);
		signals_are_blocked = true;
	}
	return 0;
}

/* libcurl calls this for each connection, before its handshake. */
static CURLcode
before_handshake(CURL *easy, void *ssl_ctx, void *arg)
{
	AwsRequest *r = arg;

	return services.bound_tls(ssl_ctx, false, &r->exceeded) ? CURLE_OK :
															  CURLE_OUT_OF_MEMORY;
}

static size_t
take_header(char *line, size_t size, size_t n, void *arg)
{
	AwsRequest *r = arg;

	r->header_bytes += size * n;
	r->too_long = r->too_long || r->header_bytes > HEADERS_MAX;
	r->coded = r->coded || outbox_header_is_coding(line, size * n);
	return r->too_long || r->coded ? 0 : size * n;
}

static size_t
take_body(char *data, size_t size, size_t n, void *arg)
{
	AwsRequest *r = arg;

	if (r->answer.len + size * n > OUTBOX_ANSWER_MAX)
		r->too_long = true;
	else
		aws_add(&r->answer, data, size * n);
	return r->too_long || r->answer.failed ? 0 : size * n;
}

/* libcurl calls this whenever it has worked for the request. */
static int
after_work(void *arg, curl_off_t all_down, curl_off_t down, curl_off_t all_up,
		   curl_off_t up)
{
	AwsRequest *r = arg;

	(void) all_down, (void) down, (void) all_up, (void) up;
	/* Keys are for all: no endpoint's debt delays them. */
	if (!r->plain)
		services.rest_worked(&r->rest, r->connected);
	return 0;
}

/* ------------------------------------------------------------ requests */

static bool
set_constants(AwsRequest *r)
{
	static const OutboxCurlNumber numbers[] = {
		{CURLOPT_BUFFERSIZE, 4 * 1024}, /* filled up to a hundred times in one call */
		{CURLOPT_QUICK_EXIT, 1},
		{CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1},
		/* "Expect:" would be signed, and not sent. */
		{CURLOPT_EXPECT_100_TIMEOUT_MS, 200},
	};
	const OutboxCurlHooks hooks = {.take_header = take_header,
								   .take_body = take_body,
								   .open_socket = open_socket,
								   .before_request = before_request,
								   .before_lookup = before_lookup,
								   .before_handshake = services.bound_tls ?
									   before_handshake :
									   NULL,
								   .after_work = after_work};

	return outbox_curl_set_constants(r->easy, &hooks, r, r->errbuf, ca_file,
									 only_tls_1_3) &&
		outbox_curl_set_numbers(r->easy, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
		curl_easy_setopt(r->easy, CURLOPT_PROXY, "") == CURLE_OK &&
		curl_easy_setopt(r->easy, CURLOPT_NOPROXY, "*") == CURLE_OK;
}

static void
free_request(AwsRequest *r)
{
	curl_easy_cleanup(r->easy);
	aws_text_free(&r->body);
	aws_text_free(&r->answer);
	free(r);
}

AwsRequest *
aws_http_acquire(void)
{
	AwsRequest *r = unused;

	if (r)
	{
		unused = r->next;
		nunused--;
	}
	else if ((r = calloc(1, sizeof(*r))) == NULL)
		return NULL;
	if (r->easy && r->generation == generation)
		return r;
	curl_easy_cleanup(r->easy);
	r->rest.easy = r->easy = curl_easy_init();
	r->rest.paused = false;
	r->generation = generation;
	if (r->easy && set_constants(r))
		return r;
	free_request(r);
	return NULL;
}

/* Empties a buffer, and keeps its memory if that is little. */
static void
empty(AwsText *t)
{
	if (t->size > BODY_KEPT || t->failed)
		aws_text_free(t);
	t->len = 0;
}

void
aws_http_release(AwsRequest *r)
{
	services.rest_leave(&r->rest);
	if (r->plain)
	{
		if (r->body.data)
			explicit_bzero(r->body.data, r->body.size);
		if (r->answer.data)
			explicit_bzero(r->answer.data, r->answer.size);
	}
	/*
	 * It is set up differently, and has tokens and keys; or it keeps a large head; or has
	 * sent again, which libcurl does five times in the life of a handle.
	 */
	if (r->plain || r->header_bytes > HEAD_KEPT || r->sent > 1)
	{
		curl_easy_cleanup(r->easy);
		r->easy = NULL;
	}
	empty(&r->body);
	empty(&r->answer);
	for (struct curl_slist *line = r->headers; line; line = line->next)
		explicit_bzero(line->data, strlen(line->data));
	curl_slist_free_all(r->headers);
	r->headers = NULL;
	/* libcurl's copies of the keys end with their use. */
	if (r->easy)
	{
		(void) curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, NULL);
		(void) curl_easy_setopt(r->easy, CURLOPT_USERNAME, NULL);
		(void) curl_easy_setopt(r->easy, CURLOPT_PASSWORD, NULL);
	}
	if (nunused >= UNUSED_KEPT)
	{
		free_request(r);
		return;
	}
	r->next = unused;
	unused = r;
	nunused++;
}

static bool
add_header(AwsRequest *r, const char *name, const char *value)
{
	size_t			   size = strlen(name) + strlen(value) + 3;
	char			  *line = malloc(size);
	struct curl_slist *longer = NULL;

	if (line)
	{
		snprintf(line, size, "%s: %s", name, value);
		longer = curl_slist_append(r->headers, line);
		outbox_wipe(&line);
	}
	if (longer)
		r->headers = longer;
	return longer != NULL;
}

static void
prepare(AwsRequest *r, bool encrypted)
{
	r->encrypted = encrypted;
	r->plain = r->metadata = r->connected = r->too_long = r->coded = false;
	r->looks_up = r->lacks = false;
	r->refused = r->exceeded = NULL;
	r->header_bytes = 0;
	r->sent = 0;
	r->errbuf[0] = '\0';
}

static const char *
add_to_multi(AwsRequest *r, int connect_timeout, int timeout, bool ok)
{
	int64_t now = sink_now_ms();

	r->ends_at[true] = now + timeout;
	r->ends_at[false] = now + (connect_timeout < timeout ? connect_timeout : timeout);
	if (!ok || !outbox_curl_set_ages(r->easy, (long) ((now - reloaded_at) / 1000)) ||
		curl_easy_setopt(r->easy, CURLOPT_CONNECTTIMEOUT_MS, (long) connect_timeout) !=
			CURLE_OK ||
		curl_easy_setopt(r->easy, CURLOPT_TIMEOUT_MS, (long) timeout) != CURLE_OK)
		return "out of memory";
	if (curl_multi_add_handle(multi, r->easy) != CURLM_OK)
		return "libcurl takes no more requests";
	timer_at = 0; /* also if it was put off */
	return NULL;
}

const char *
aws_http_start(AwsRequest *r, const AwsTarget *t, const AwsKeys *keys,
			   int connect_timeout, int timeout)
{
	char signer[100];
	bool ok;

	prepare(r, t->encrypted);
	snprintf(signer, sizeof(signer), "aws:amz:%s:%s", t->region, t->facts->name);
	ok = !r->body.failed && add_header(r, "Content-Type", t->facts->content_type) &&
		(t->facts->action == NULL || add_header(r, "X-Amz-Target", t->facts->action)) &&
		(keys->session_token == NULL ||
		 add_header(r, "X-Amz-Security-Token", keys->session_token));

#define SET(option, value) ok = ok && curl_easy_setopt(r->easy, option, value) == CURLE_OK
	SET(CURLOPT_URL, t->url);
	SET(CURLOPT_AWS_SIGV4, signer);
	SET(CURLOPT_USERNAME, keys->access_key_id);
	SET(CURLOPT_PASSWORD, keys->secret_access_key);
	SET(CURLOPT_HTTPHEADER, r->headers);
	SET(CURLOPT_POSTFIELDS, r->body.data);
	SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) r->body.len);
#undef SET
	return add_to_multi(r, connect_timeout, timeout, ok);
}

const char *
aws_http_start_plain(AwsRequest *r, const AwsPlain *plain)
{
	bool ok;

	prepare(r, strncasecmp(plain->url, "https:", 6) == 0);
	r->plain = true;
	r->metadata = plain->metadata;
	ok = !r->body.failed && add_header(r, "Accept", "*/*") &&
		(plain->header == NULL || add_header(r, plain->header, plain->value));

#define SET(option, value) ok = ok && curl_easy_setopt(r->easy, option, value) == CURLE_OK
	SET(CURLOPT_URL, plain->url);
	SET(CURLOPT_HTTPHEADER, r->headers);
	SET(CURLOPT_FORBID_REUSE, 1L);
	if (strcmp(plain->method, "POST") == 0)
	{
		SET(CURLOPT_POSTFIELDS, r->body.data);
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) r->body.len);
	}
	else
	{
		SET(CURLOPT_HTTPGET, 1L);
		SET(CURLOPT_CUSTOMREQUEST, plain->method);
	}
#undef SET
	return add_to_multi(r, plain->connect_timeout, plain->timeout, ok);
}

/* ------------------------------------------------------------- the loop */

static void
unblock_signals(void)
{
	if (signals_are_blocked)
		pthread_sigmask(SIG_SETMASK, &former_signals, NULL);
	signals_are_blocked = false;
}

static void
act(curl_socket_t fd, int mask)
{
	int running;

	if (curl_multi_socket_action(multi, fd, mask, &running) == CURLM_OUT_OF_MEMORY)
		lacked_memory = true;
	unblock_signals();
}

static void
on_event(const struct epoll_event *event)
{
	int			fd = (int) (uint32_t) event->data.u64;
	int32_t		endpoint = (int32_t) (event->data.u64 >> 32);
	int			mask = 0;
	const char *why;

	if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		mask |= CURL_CSELECT_IN;
	if (event->events & EPOLLOUT)
		mask |= CURL_CSELECT_OUT;
	services.serves(endpoint);
	why = services.peer_event(fd);
	act(fd, mask);
	if (why || (why = services.peer_ended()) != NULL)
	{
		exceeded = why;
		exceeded_for = endpoint;
	}
}

bool
aws_http_step(void)
{
	struct epoll_event events[64];
	int				   n = epoll_wait(epoll_fd, events, 64, 0);

	outbox_polls_begin(&polls, sink_now_ms());
	services.rests_step();
	for (int i = 0; i < n; i++)
		on_event(&events[i]);
	if (timer_at != NEVER && timer_at <= sink_now_ms())
	{
		timer_at = NEVER;
		services.serves(0);
		act(CURL_SOCKET_TIMEOUT, 0);
		timer_at = services.rests_timer(timer_at);
	}
	polls.due_at = sink_now_ms();
	return !lacked_memory;
}

long
aws_http_timeout(void)
{
	long long at = services.rests_deadline();
	long long wait;

	if (timer_at != NEVER && timer_at < at)
		at = timer_at;
	outbox_polls_next(&polls, at);
	if (at == INT64_MAX)
		return -1;
	wait = at - sink_now_ms();
	return wait > 0 ? (long) wait : 0;
}

int
aws_http_fd(void)
{
	return epoll_fd;
}

static OutboxFailure
failure_of(const AwsRequest *r, CURLcode code)
{
	if (r->refused)
		return OUTBOX_FAILURE_ADDRESS;
	if (r->too_long || r->coded || outbox_curl_line_is_too_long(code, r->connected))
		return OUTBOX_FAILURE_PROTOCOL;
	if (r->exceeded)
		return OUTBOX_FAILURE_TLS;
	if (code == CURLE_OPERATION_TIMEDOUT && !r->connected)
		return OUTBOX_FAILURE_CONNECT;
	return outbox_curl_failure(code);
}

static void
explain(const AwsRequest *r, CURLcode code, AwsEnd *end)
{
	end->failure = failure_of(r, code);
	if (code == CURLE_OPERATION_TIMEDOUT &&
		outbox_polls_held_up(&polls, r->ends_at[r->connected]))
	{
		end->failure = OUTBOX_FAILURE_INTERNAL;
		end->lost = OUTBOX_HELD_UP_LOST;
		snprintf(end->words, sizeof(end->words), OUTBOX_HELD_UP);
	}
	else if (r->lacks)
		end->lacks = OUTBOX_LACKS_LOOKUPS;
	else if (r->refused && r->metadata)
		snprintf(end->words, sizeof(end->words), "%s is %s", r->address, r->refused);
	else if (r->refused)
		snprintf(end->words, sizeof(end->words),
				 "address %s is %s, and not in outbox.allowed_networks", r->address,
				 r->refused);
	else if (r->too_long || outbox_curl_line_is_too_long(code, r->connected))
		snprintf(end->words, sizeof(end->words), "its answer is too long");
	else if (r->coded || code == CURLE_BAD_CONTENT_ENCODING)
		snprintf(end->words, sizeof(end->words),
				 "its answer has a transfer coding other than chunked");
	else if (r->exceeded)
		snprintf(end->words, sizeof(end->words), "%s", r->exceeded);
	else if (exceeded && exceeded_for == r->rest.endpoint &&
			 end->failure == OUTBOX_FAILURE_CLOSED)
		snprintf(end->words, sizeof(end->words), "%s", exceeded);
	else if (code == CURLE_OPERATION_TIMEDOUT)
		snprintf(end->words, sizeof(end->words), "timed out%s",
				 r->rest.rested	  ? OUTBOX_WHILE_RESTING :
					 r->connected ? "" :
									" while connecting");
	else
		snprintf(end->words, sizeof(end->words), "%s",
				 r->errbuf[0] ? r->errbuf : curl_easy_strerror(code));
	if (exceeded_for == r->rest.endpoint)
		exceeded = NULL;
	/* libcurl counts milliseconds in some of its texts, which are other ones each time. */
	if (end->failure == OUTBOX_FAILURE_CONNECT)
	{
		char *after = strstr(end->words, " after ");
		char *colon = after ? strstr(after, " ms: ") : NULL;

		if (colon)
			memmove(after, colon + 3, strlen(colon + 3) + 1);
	}
}

AwsRequest *
aws_http_next(AwsEnd *end)
{
	CURLMsg *msg;
	int		 left;

	while ((msg = curl_multi_info_read(multi, &left)) != NULL)
	{
		AwsRequest *r = NULL;
		CURLcode	code = msg->data.result;
		CURL	   *easy = msg->easy_handle;
		long		status = 0;

		if (msg->msg != CURLMSG_DONE ||
			curl_easy_getinfo(easy, CURLINFO_PRIVATE, &r) != CURLE_OK)
			continue;
		memset(end, 0, sizeof(*end));
		end->sent = r->sent;
		if (code == CURLE_OK)
		{
			(void) curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
			end->status = (int) status;
		}
		else
			explain(r, code, end);
		end_lookup(r, code == CURLE_OPERATION_TIMEDOUT);
		services.rest_leave(&r->rest);
		curl_multi_remove_handle(multi, easy);
		unblock_signals();
		return r;
	}
	return NULL;
}

void
aws_http_set_tls(const char *file, bool only_1_3)
{
	only_tls_1_3 = only_1_3;
	free(ca_file);
	ca_file = file && file[0] ? strdup(file) : NULL;
	if (generation++ > 0)
		reloaded_at = sink_now_ms();
}

bool
aws_http_init(const OutboxServices *given)
{
	services = *given;
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0 || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return false;
	multi = curl_multi_init();
#if LIBCURL_VERSION_NUM >= 0x081400
	if (multi != NULL)
		curl_multi_setopt(multi, CURLMOPT_RESOLVE_THREADS_MAX, (long) LOOKUPS_MAX);
#endif
	return multi != NULL &&
		curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, want_socket) == CURLM_OK &&
		curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, set_timer) == CURLM_OK &&
		curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, CONNECTIONS_MAX) == CURLM_OK;
}

void
aws_http_shutdown(void)
{
	/* Handles in flight are not ended one by one: the process ends. */
	if (epoll_fd >= 0)
		close(epoll_fd);
	epoll_fd = -1;
}
