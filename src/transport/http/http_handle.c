/*
 * http_handle.c
 *	  Owns the options of a libcurl handle, and its callbacks.
 *
 * The callbacks only store their arguments.  They neither throw nor use palloc, because
 * a longjmp through libcurl's frames is undefined.
 */
#include "base/settings.h"
#include "transport/http/http_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

/*
 * The status decides, so a body is read only for its first bytes, and to keep the
 * connection usable.  If a body is longer than this, the connection is closed.
 */
#define BODY_BYTES_MAX (64 * 1024)

/* For larger bodies, libcurl sends "Expect: 100-continue" unless that is disabled. */
#define EXPECTS_FROM (512 * 1024)

#define PROXY_BYTES_MAX (64 * 1024) /* of a proxy's answer to CONNECT */

/*
 * Bytes of PEM of an endpoint's own certificates and authorities.  Usual ones are a part of
 * the bytes that a connection counts itself.  The cost is that of a receiver's certificates
 * (http_peer.c), less a quarter, because PEM is longer by a third.
 */
#define OWN_USUAL (6 * 1024)
#define OWN_COST 36

/*
 * True if a request of this transfer may go to the address.  Otherwise stores why not.
 */
static bool
address_is_allowed(OutboxTransfer *t, const struct sockaddr *sa)
{
	const char		  *why;
	OutboxAddressClass verdict = outbox_address_judge(sa, outbox_networks, &why);

	if (verdict == OUTBOX_ADDRESS_ALLOWED ||
		(verdict == OUTBOX_ADDRESS_PUBLIC && !t->plain))
		return true;
	t->refused = verdict == OUTBOX_ADDRESS_REFUSED ? why : outbox_http_public;
	return false;
}

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	OutboxTransfer *t = arg;
	int				fd;

	outbox_http_serves(t->rest.endpoint);
	/* The superuser has chosen the proxy's own address. */
	if (!t->proxied && !address_is_allowed(t, &address->addr))
		return CURL_SOCKET_BAD;
	t->tried = true;
	if (address->family == AF_INET6)
		memcpy(&t->v6, &address->addr, Min(address->addrlen, sizeof(t->v6)));
	fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
	if (fd < 0)
	{
		/* If the system lacks an address family, the address is the cause. */
		if (errno != EAFNOSUPPORT)
			t->socket_errno = errno;
		return CURL_SOCKET_BAD;
	}
	(void) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){OUTBOX_ANSWER_MAX}, sizeof(int));
	t->opened[address->family == AF_INET6] = fd;
	outbox_http_watch(t, fd,
					  t->plain									  ? OUTBOX_HTTP_PLAIN :
						  t->set_version == CURL_HTTP_VERSION_1_1 ? OUTBOX_HTTP_TLS :
																	OUTBOX_HTTP_TLS_2);
	return fd;
}

/*
 * libcurl calls this before it looks up a host for which it has no addresses.  It may
 * do so for an address, but not for a name, which http_lookup.c looks up.  A result
 * other than 0 makes the request fail.
 */
static int
before_lookup(void *resolver, void *reserved, void *arg)
{
	OutboxTransfer *t = arg;

	return (t->proxied ? outbox_http_config.proxy_host : t->lookup_host)[0] != '\0';
}

/*
 * There is a connection, new or reused, and nothing was sent over it yet.  If a reused one
 * ends without an answer, libcurl sends the request again, or we do: libcurl gives up after
 * five of a handle.  Over HTTP/1.1 that is over a new connection, because all idle ones may
 * be at their end.  If that fails, too, it is a failure.
 */
static int
before_request(void *arg, char *ip, char *local_ip, int port, int local_port)
{
	OutboxTransfer *t = arg;

	outbox_http_serves(t->rest.endpoint);
	outbox_http_rest_begins(&t->rest);
	t->connected = true;
	if (!t->proxied)
	{
		struct sockaddr_storage address = outbox_curl_address(ip);

		if (!address_is_allowed(t, (struct sockaddr *) &address))
		{
			t->tried = false;
			return CURL_PREREQFUNC_ABORT;
		}
	}
	t->sent++;
	if (!t->tried && t->set_version == CURL_HTTP_VERSION_1_1)
		t->fresh = curl_easy_setopt(t->easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK;
	outbox_http_got_through(t);
	return CURL_PREREQFUNC_OK;
}

static size_t
take_header(char *line, size_t size, size_t n, void *arg)
{
	OutboxTransfer *t = arg;
	size_t			len = size * n;

	outbox_http_serves(t->rest.endpoint);
	switch (outbox_head_line(&t->head, &t->outcome, line, len, (int64) time(NULL)))
	{
		case OUTBOX_HEAD_OVERSIZED:
		case OUTBOX_HEAD_CODED:
			return 0;
		case OUTBOX_HEAD_COMPLETE:
			if (t->state == RUNNING)
				t->got_headers(t);
			break;
		default:
			break;
	}
	return len;
}

/* Returns 0 if there is no memory. */
static size_t
keep_answer(OutboxTransfer *t, const char *data, size_t len)
{
	size_t size = t->answer_size ? t->answer_size : 1024;

	while (size < t->answer_len + len)
		size *= 2;
	if (size > t->answer_size)
	{
		char *bigger = outbox_headers_realloc(t->answer, t->answer_len, size);

		if (bigger == NULL)
			return 0;
		t->answer = bigger;
		t->answer_size = size;
	}
	memcpy(t->answer + t->answer_len, data, len);
	t->answer_len += len;
	return len;
}

static size_t
take_body(char *data, size_t size, size_t n, void *arg)
{
	OutboxTransfer *t = arg;
	size_t			len = size * n;
	bool			good = t->head.status >= 200 && t->head.status <= 299;
	size_t			most = good ? t->answer_most : (size_t) outbox_log_answer_size;

	outbox_http_serves(t->rest.endpoint);
	if (t->state != ANSWERED)
		return 0;
	if (good && t->whole_answer)
	{
		if (t->answer_len + len <= t->whole_answer)
			return keep_answer(t, data, len);
		t->answer_len = t->whole_answer + 1;
		return 0;
	}
	if (t->answer_len < most)
		(void) keep_answer(t, data, Min(len, most - t->answer_len));
	t->body_bytes += len;
	return t->body_bytes > BODY_BYTES_MAX ? 0 : len;
}

/*
 * libcurl calls this for each connection, before its handshake.  OpenSSL has the endpoint's
 * own certificates until the connection is closed.
 */
static CURLcode
before_handshake(CURL *easy, void *ssl_ctx, void *arg)
{
	OutboxTransfer			 *t = arg;
	const OutboxHttpIdentity *own = t->identity;
	size_t					  len = own ? own->certificate.len + own->authority.len : 0;
	int						  fd = outbox_http_socket_of(t);

	if (len > OWN_USUAL)
		outbox_http_socket_holds(fd, (len - OWN_USUAL) * OWN_COST);
	return outbox_http_bound_tls(ssl_ctx, fd, fd < 0 ? NULL : outbox_http_socket_holds,
								 t->set_version == CURL_HTTP_VERSION_2TLS, &t->exceeded) ?
		CURLE_OK :
		CURLE_OUT_OF_MEMORY;
}

/*
 * libcurl calls this whenever it has worked for the transfer, and for each byte of a
 * proxy's answer, which it reads in one call.  A result other than 0 makes the request fail.
 */
static int
on_progress(void *arg, curl_off_t all_down, curl_off_t down, curl_off_t all_up,
			curl_off_t up)
{
	OutboxTransfer *t = arg;

	(void) all_down, (void) down, (void) all_up, (void) up;
	outbox_http_rest_worked(&t->rest, t->connected);
	if (t->connected || !t->proxied || ++t->proxy_bytes <= PROXY_BYTES_MAX)
		return 0;
	t->exceeded = "the proxy sent too much before the connection was made";
	return 1;
}

/* Sets the options that never change, or with a reload, which makes new handles. */
static bool
set_constants(OutboxTransfer *t)
{
	static const OutboxCurlNumber numbers[] = {
		{CURLOPT_SUPPRESS_CONNECT_HEADERS, 1},
		{CURLOPT_HEADEROPT, CURLHEADER_SEPARATE},
		{CURLOPT_PROXY_SSL_VERIFYPEER, 1},
		{CURLOPT_PROXY_SSL_VERIFYHOST, 2},
		{CURLOPT_TCP_NODELAY, 1},
		{CURLOPT_UPLOAD_BUFFERSIZE, 16 * 1024},
		/* libcurl fills it up to a hundred times in one call, before it looks at others. */
		{CURLOPT_BUFFERSIZE, 2 * 1024},
	};
	const OutboxCurlHooks hooks = {.take_header = take_header,
								   .take_body = take_body,
								   .open_socket = open_socket,
								   .before_request = before_request,
								   .before_lookup = before_lookup,
								   .before_handshake = outbox_http_config.tls_is_bounded ?
									   before_handshake :
									   NULL,
								   .after_work = on_progress};
	const char			 *cert = outbox_ssl_cert_file;
	const char			 *key = outbox_ssl_key_file;
	CURL				 *easy = t->easy;
	bool ok = outbox_curl_set_constants(easy, &hooks, t, t->errbuf, outbox_ssl_ca_file,
										outbox_ssl_min_protocol_version ==
											OUTBOX_TLS_1_3) &&
		outbox_curl_set_numbers(easy, numbers, lengthof(numbers));

#define SET(option, value) ok = ok && curl_easy_setopt(easy, option, value) == CURLE_OK
	SET(CURLOPT_NOPROXY, ""); /* $no_proxy is ignored, too */
	SET(CURLOPT_CLOSESOCKETFUNCTION, outbox_http_close_socket);
	SET(CURLOPT_SSLCERT, cert && cert[0] ? cert : NULL);
	SET(CURLOPT_SSLKEY, key && key[0] ? key : NULL);
	/* Without one, OpenSSL asks for that of the key on the terminal, and waits. */
	SET(CURLOPT_KEYPASSWD, "");
#undef SET
	return ok;
}

void
outbox_http_free_handle(OutboxTransfer *t)
{
	curl_easy_cleanup(t->easy);
	t->rest.easy = t->easy = NULL;
	t->generation = 0;
}

/* Makes a new handle, and frees the old one if there is any. */
bool
outbox_http_make_handle(OutboxTransfer *t)
{
	outbox_http_free_handle(t);
	t->rest.easy = t->easy = curl_easy_init();
	t->rest.paused = false;
	if (t->easy == NULL || !set_constants(t))
	{
		outbox_http_free_handle(t);
		return false;
	}
	t->generation = outbox_http_config.generation;
	if (t->url)
		t->url[0] = '\0';
	t->set_version = 0;
	t->set_method = NULL;
	t->set_identity = 0;
	t->fresh = false;
	t->set_connect_timeout = t->set_timeout = -1;
	t->resolve_since = -1;
	t->age = -1;
	return true;
}

static bool
set_ages(OutboxTransfer *t)
{
	long age = outbox_http_since_reload();

	age = Min(age, OUTBOX_CONNECTION_LIFE_MAX);
	if (t->age == age)
		return true;
	t->age = age;
	return outbox_curl_set_ages(t->easy, age);
}

/*
 * The URL is passed in its parsed form.  libcurl would parse a text, and put it
 * together again, for each request.
 */
static const char *
set_url(OutboxTransfer *t, const char *url)
{
	size_t		size = strlen(url) + 1;
	const char *complaint;
	CURLUcode	code;

	if (t->url_size < size)
	{
		char *bigger = realloc(t->url, size);

		if (bigger == NULL)
			return OUTBOX_LACKS_MEMORY;
		t->url = bigger;
		t->url_size = size;
	}
	t->url[0] = '\0'; /* not valid until all of it is set */
	t->resolve_since = -1;
	if (t->parsed == NULL && (t->parsed = curl_url()) == NULL)
		return OUTBOX_LACKS_MEMORY;
	code = curl_url_set(t->parsed, CURLUPART_URL, url, CURLU_DISALLOW_USER);
	if (code != CURLUE_OK)
		return curl_url_strerror(code);
	complaint = outbox_http_split_url(t->parsed, 0, t->lookup_host,
									  sizeof(t->lookup_host), &t->lookup_port);
	if (complaint != NULL)
		return complaint;

	/*
	 * Plain http goes to allowed networks only, and is judged by the final address.  A
	 * proxy would hide that address, so plain http never uses the proxy.
	 */
	t->plain = strncasecmp(url, "https:", 6) != 0;
	t->proxied = outbox_http_config.use_proxy && !t->plain;
	if (curl_easy_setopt(t->easy, CURLOPT_CURLU, t->parsed) != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_PROXY, t->proxied ? outbox_proxy : "") !=
			CURLE_OK)
		return OUTBOX_LACKS_MEMORY;
	memcpy(t->url, url, size);
	t->host_hash = outbox_http_host_hash(t->url);
	return NULL;
}

static bool
set_version(OutboxTransfer *t, bool two)
{
	long version = two && !t->plain && outbox_http_config.have_http2 ?
		CURL_HTTP_VERSION_2TLS :
		CURL_HTTP_VERSION_1_1;

	if (t->set_version == version)
		return true;

	/*
	 * libcurl would send a request that asks for HTTP/2 over an idle connection of
	 * HTTP/1.1.  It uses no connection that has other options of TLS, and this one has
	 * an effect on Windows only.
	 */
	if (curl_easy_setopt(t->easy, CURLOPT_HTTP_VERSION, version) != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_SSL_OPTIONS,
						 version == CURL_HTTP_VERSION_2TLS ?
							 (long) CURLSSLOPT_REVOKE_BEST_EFFORT :
							 0L) != CURLE_OK)
		return false;
	t->set_version = version;
	return true;
}

/* libcurl takes the authorities of a directory as well, if it was built with one. */
static bool
leave_out_directory(CURL *easy)
{
	CURLcode rc = curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);

	return rc == CURLE_OK || rc == CURLE_NOT_BUILT_IN; /* there is none */
}

/*
 * Sets the certificates of the endpoint.  libcurl uses no connection again that was made
 * with others.
 */
static bool
set_identity(OutboxTransfer *t)
{
	const OutboxHttpIdentity *own = t->identity;
	uint64					  number;

	if (own && own->certificate.len == 0 && own->authority.len == 0)
		own = NULL;
	number = own ? own->number : 0;
	if (t->set_identity == number)
		return true;
	if (!outbox_http_make_handle(t))
		return false;
	t->set_identity = PG_UINT64_MAX; /* until all of it is set */
	if (own && own->authority.len > 0 &&
		(curl_easy_setopt(t->easy, CURLOPT_CAINFO_BLOB, &own->authority) != CURLE_OK ||
		 !leave_out_directory(t->easy)))
		return false;
	if (own && own->certificate.len > 0 &&
		(curl_easy_setopt(t->easy, CURLOPT_SSLCERT, NULL) != CURLE_OK ||
		 curl_easy_setopt(t->easy, CURLOPT_SSLKEY, NULL) != CURLE_OK ||
		 curl_easy_setopt(t->easy, CURLOPT_SSLCERT_BLOB, &own->certificate) != CURLE_OK ||
		 curl_easy_setopt(t->easy, CURLOPT_SSLKEY_BLOB, &own->key) != CURLE_OK))
		return false;
	t->set_identity = number;
	return true;
}

static bool
set_method(OutboxTransfer *t, const char *method)
{
	if (t->set_method == method)
		return true;
	t->set_method = method;
	return curl_easy_setopt(t->easy, CURLOPT_CUSTOMREQUEST, method) == CURLE_OK;
}

/* Returns the URL with a query of the event behind its own, malloc'd.  NULL: no memory. */
char *
outbox_http_url_with_query(const char *url, const char *query)
{
	size_t len = strcspn(url, "#"); /* a fragment is not sent */
	size_t size = len + strlen(query) + 2;
	char  *result = malloc(size);

	if (result)
		snprintf(result, size, "%.*s%c%s", (int) len, url,
				 memchr(url, '?', len) ? '&' : '?', query);
	return result;
}

static const char *
set_target_url(OutboxTransfer *t, const OutboxTarget *target)
{
	char	   *url;
	const char *complaint;

	if (t->headers.query == 0)
		return t->url && strcmp(t->url, target->url) == 0 ? NULL :
															set_url(t, target->url);
	url = outbox_http_url_with_query(target->url, t->headers.buf + t->headers.query);
	if (url == NULL)
		return OUTBOX_LACKS_MEMORY;
	complaint = set_url(t, url);
	free(url);
	return complaint;
}

bool
outbox_http_set_timeouts(OutboxTransfer *t, int connect_timeout, int timeout)
{
	if (t->set_connect_timeout != connect_timeout)
	{
		if (curl_easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT_MS,
							 (long) connect_timeout) != CURLE_OK)
			return false;
		t->set_connect_timeout = connect_timeout;
	}
	if (t->set_timeout != timeout)
	{
		if (curl_easy_setopt(t->easy, CURLOPT_TIMEOUT_MS, (long) timeout) != CURLE_OK)
			return false;
		t->set_timeout = timeout;
	}
	return true;
}

/* Makes libcurl's list of the header lines. */
static bool
set_lines(OutboxTransfer *t, size_t body_len)
{
	static char	   no_expect[] = "Expect:";
	OutboxHeaders *h = &t->headers;
	int			   n = 0;

	if (h->n + 1 > t->max_lines)
	{
		int				   max = h->max + 1;
		struct curl_slist *bigger = realloc(t->lines, max * sizeof(*bigger));

		if (bigger == NULL)
			return false;
		t->lines = bigger;
		t->max_lines = max;
	}
	for (; n < h->n; n++)
		t->lines[n].data = h->buf + h->start[n];

	/*
	 * libcurl compares each line with a dozen names, so a line without effect is left
	 * out.
	 */
	if (body_len >= EXPECTS_FROM)
		t->lines[n++].data = no_expect;
	for (int i = 0; i < n; i++)
		t->lines[i].next = i + 1 < n ? &t->lines[i + 1] : NULL;
	return curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->lines) == CURLE_OK;
}

/*
 * Sets all options of a request that the handle does not have yet.  Returns NULL, or
 * the problem.
 */
const char *
outbox_http_set_request(OutboxTransfer *t, const OutboxTarget *target, const char *body,
						size_t body_len)
{
	static const char options[] = "OPTIONS";
	const char		 *complaint;

	if (t->generation != outbox_http_config.generation && !outbox_http_make_handle(t))
		return OUTBOX_LACKS_MEMORY;
	if (!set_identity(t))
		return OUTBOX_LACKS_MEMORY;
	if ((complaint = set_target_url(t, target)) != NULL)
		return complaint;
	if (t->fresh)
		t->fresh = curl_easy_setopt(t->easy, CURLOPT_FRESH_CONNECT, 0L) != CURLE_OK;
	if (t->fresh || !set_version(t, outbox_http_wants_2(target)) ||
		!set_method(t, t->origin ? options : outbox_http_method(target)) ||
		!set_ages(t) || !set_lines(t, body_len) ||
		curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, body ? body : "") != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) body_len) !=
			CURLE_OK)
		return OUTBOX_LACKS_MEMORY;
	return NULL;
}
