/*
 * libcurl.h
 *	  What all that send by libcurl say in the same way: webhooks (http/), and the sinks of
 *	  AWS.
 */
#ifndef OUTBOX_LIBCURL_H
#define OUTBOX_LIBCURL_H

#include <curl/curl.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "transport/transport.h"

/* What libcurl calls for a handle.  All of them get 'arg', and errbuf its texts. */
typedef struct OutboxCurlHooks
{
	curl_write_callback			 take_header;
	curl_write_callback			 take_body;
	curl_opensocket_callback	 open_socket;
	curl_prereq_callback		 before_request;
	curl_resolver_start_callback before_lookup;
	curl_ssl_ctx_callback		 before_handshake; /* NULL: none */
	curl_xferinfo_callback		 after_work;
} OutboxCurlHooks;

typedef struct OutboxCurlNumber
{
	CURLoption option;
	long	   value;
} OutboxCurlNumber;

/* False: libcurl does not take one of them. */
static inline bool
outbox_curl_set_numbers(CURL *easy, const OutboxCurlNumber *numbers, size_t n)
{
	bool ok = true;

	for (size_t i = 0; i < n; i++)
		ok = ok &&
			curl_easy_setopt(easy, numbers[i].option, numbers[i].value) == CURLE_OK;
	return ok;
}

/*
 * Sets the options that protect from servers, and those that all handles have.  'ca_file' is
 * outbox.ssl_ca_file (NULL or "": the system's bundle).  libcurl's default directory of
 * certificates would count beside either file.  It would also keep libcurl from loading the
 * file once for many connections, and each connection would have a copy of all certificates.
 */
static inline bool
outbox_curl_set_constants(CURL *easy, const OutboxCurlHooks *hooks, void *arg,
						  char *errbuf, const char *ca_file, bool only_tls_1_3)
{
	static const OutboxCurlNumber numbers[] =
	{ {CURLOPT_POST, 1},
	  {CURLOPT_NOPROGRESS, 0},
	  {CURLOPT_NOSIGNAL, 1},
	  {CURLOPT_FOLLOWLOCATION, 0},
	  {CURLOPT_NETRC, CURL_NETRC_IGNORED},
	  {CURLOPT_DISALLOW_USERNAME_IN_URL, 1},
	  {CURLOPT_HTTP09_ALLOWED, 0},
	  {CURLOPT_HTTP_CONTENT_DECODING, 0},
	  {CURLOPT_SSL_VERIFYPEER, 1},
	  {CURLOPT_SSL_VERIFYHOST, 2},
	  /* A resumed session would not verify the certificate again. */
	  {CURLOPT_SSL_SESSIONID_CACHE, 0},
	  {CURLOPT_TCP_KEEPALIVE, 1},
	  {CURLOPT_MAXAGE_CONN, 50}, /* s without a request */
#if LIBCURL_VERSION_NUM < 0x075500
	  {CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS},
#endif
	};
	bool ok = outbox_curl_set_numbers(easy, numbers,
									  sizeof(numbers) / sizeof(numbers[0]));

#define SET(option, value) ok = ok && curl_easy_setopt(easy, option, value) == CURLE_OK
#if LIBCURL_VERSION_NUM >= 0x075500
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
#endif
	SET(CURLOPT_PRIVATE, arg);
	SET(CURLOPT_ERRORBUFFER, errbuf);
	SET(CURLOPT_HEADERFUNCTION, hooks->take_header);
	SET(CURLOPT_HEADERDATA, arg);
	SET(CURLOPT_WRITEFUNCTION, hooks->take_body);
	SET(CURLOPT_WRITEDATA, arg);
	SET(CURLOPT_OPENSOCKETFUNCTION, hooks->open_socket);
	SET(CURLOPT_OPENSOCKETDATA, arg);
	SET(CURLOPT_PREREQFUNCTION, hooks->before_request);
	SET(CURLOPT_PREREQDATA, arg);
	SET(CURLOPT_RESOLVER_START_FUNCTION, hooks->before_lookup);
	SET(CURLOPT_RESOLVER_START_DATA, arg);
	SET(CURLOPT_XFERINFOFUNCTION, hooks->after_work);
	SET(CURLOPT_XFERINFODATA, arg);
	if (hooks->before_handshake)
	{
		SET(CURLOPT_SSL_CTX_FUNCTION, hooks->before_handshake);
		SET(CURLOPT_SSL_CTX_DATA, arg);
	}
	if (ca_file && ca_file[0])
		SET(CURLOPT_CAINFO, ca_file);
	if ((ca_file && ca_file[0]) || curl_version_info(CURLVERSION_NOW)->cainfo)
		SET(CURLOPT_CAPATH, NULL);
	SET(CURLOPT_SSLVERSION,
		(long) (only_tls_1_3 ? CURL_SSLVERSION_TLSv1_3 : CURL_SSLVERSION_TLSv1_2));
#undef SET
	return ok;
}

#define OUTBOX_CONNECTION_LIFE_MAX 300L /* s; an old DNS answer is used no longer */
#define OUTBOX_CA_AGE_MAX 60L			/* s for which CA files are cached */

/*
 * After a reload, 'since' s ago, libcurl must not use older connections and CA files that
 * it has stored.  libcurl counts the age of a connection in whole seconds, so the last of
 * them is closed after at most two seconds.
 */
static inline bool
outbox_curl_set_ages(CURL *easy, long since)
{
	long life = OUTBOX_CONNECTION_LIFE_MAX;

	if (since < life)
		life = since > 2 ? since - 1 : 1; /* 0 would be for ever */
#if LIBCURL_VERSION_NUM >= 0x075700
	/* Not every TLS library has that cache. */
	(void) curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT,
							since < OUTBOX_CA_AGE_MAX ? since : OUTBOX_CA_AGE_MAX);
#endif
	return curl_easy_setopt(easy, CURLOPT_MAXLIFETIME_CONN, life) == CURLE_OK;
}

/* The failure for each error of libcurl.  An error that is not listed is internal. */
static inline OutboxFailure
outbox_curl_failure(CURLcode code)
{
	static const struct
	{
		CURLcode	  code;
		OutboxFailure failure;
	} failures[] = {
		{CURLE_COULDNT_RESOLVE_PROXY, OUTBOX_FAILURE_DNS},
		{CURLE_COULDNT_RESOLVE_HOST, OUTBOX_FAILURE_DNS},
		{CURLE_COULDNT_CONNECT, OUTBOX_FAILURE_CONNECT},
		{CURLE_ABORTED_BY_CALLBACK, OUTBOX_FAILURE_CONNECT},
		{CURLE_OPERATION_TIMEDOUT, OUTBOX_FAILURE_TIMEOUT},
		{CURLE_SSL_CONNECT_ERROR, OUTBOX_FAILURE_TLS},
		{CURLE_PEER_FAILED_VERIFICATION, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_CERTPROBLEM, OUTBOX_FAILURE_TLS},
		/* A private key, in libcurl 8.23 */
		{CURLE_BAD_FUNCTION_ARGUMENT, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_CIPHER, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_CACERT_BADFILE, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_CRL_BADFILE, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_ISSUER_ERROR, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_INVALIDCERTSTATUS, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_CLIENTCERT, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_ENGINE_NOTFOUND, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_ENGINE_SETFAILED, OUTBOX_FAILURE_TLS},
		{CURLE_SSL_ENGINE_INITFAILED, OUTBOX_FAILURE_TLS},
		{CURLE_USE_SSL_FAILED, OUTBOX_FAILURE_TLS},
		{CURLE_OK, OUTBOX_FAILURE_CLOSED},
		{CURLE_GOT_NOTHING, OUTBOX_FAILURE_CLOSED},
		{CURLE_SEND_ERROR, OUTBOX_FAILURE_CLOSED},
		{CURLE_RECV_ERROR, OUTBOX_FAILURE_CLOSED},
		{CURLE_PARTIAL_FILE, OUTBOX_FAILURE_CLOSED},
		{CURLE_PROXY, OUTBOX_FAILURE_CLOSED},
		{CURLE_WRITE_ERROR, OUTBOX_FAILURE_PROTOCOL},
		{CURLE_UNSUPPORTED_PROTOCOL, OUTBOX_FAILURE_PROTOCOL},
		{CURLE_WEIRD_SERVER_REPLY, OUTBOX_FAILURE_PROTOCOL},
		{CURLE_BAD_CONTENT_ENCODING, OUTBOX_FAILURE_PROTOCOL},
		{CURLE_HTTP2, OUTBOX_FAILURE_PROTOCOL},
		{CURLE_HTTP2_STREAM, OUTBOX_FAILURE_PROTOCOL},
	};

	for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++)
		if (failures[i].code == code)
			return failures[i].failure;
	return OUTBOX_FAILURE_INTERNAL;
}

/*
 * True if libcurl gave up because a header line is longer than its buffer.  Before
 * 8.6.0 it reports that as a lack of memory.
 */
static inline bool
outbox_curl_line_is_too_long(CURLcode code, bool connected)
{
#if LIBCURL_VERSION_NUM >= 0x080600
	return code == CURLE_TOO_LARGE;
#else
	return code == CURLE_OUT_OF_MEMORY && connected;
#endif
}

/* The address that libcurl has as text.  It has no port. */
static inline struct sockaddr_storage
outbox_curl_address(const char *ip)
{
	struct sockaddr_storage address;

	memset(&address, 0, sizeof(address));
	if (inet_pton(AF_INET, ip, &((struct sockaddr_in *) &address)->sin_addr) == 1)
		address.ss_family = AF_INET;
	else if (inet_pton(AF_INET6, ip, &((struct sockaddr_in6 *) &address)->sin6_addr) == 1)
		address.ss_family = AF_INET6;
	return address;
}

/* The text without blanks and an end of a line around it. */
static inline const char *
outbox_header_trimmed(const char *text, size_t len, size_t *trimmed_len)
{
	while (len > 0 && (*text == ' ' || *text == '\t'))
	{
		text++;
		len--;
	}
	while (len > 0 &&
		   (text[len - 1] == ' ' || text[len - 1] == '\t' || text[len - 1] == '\r' ||
			text[len - 1] == '\n'))
		len--;
	*trimmed_len = len;
	return text;
}

/* The value of a header line if it has that name, otherwise NULL. */
static inline const char *
outbox_header_value(const char *line, size_t len, const char *name, size_t *value_len)
{
	size_t namelen = strlen(name);

	if (len <= namelen || line[namelen] != ':' || strncasecmp(line, name, namelen) != 0)
		return NULL;
	return outbox_header_trimmed(line + namelen + 1, len - namelen - 1, value_len);
}

/*
 * True for a coding of the answer other than chunked.  libcurl would decode it unasked, and
 * a little can be decoded for ever.
 */
static inline bool
outbox_header_is_coding(const char *line, size_t len)
{
	size_t		vlen;
	const char *value = outbox_header_value(line, len, "transfer-encoding", &vlen);

	return value && !(vlen == 7 && strncasecmp(value, "chunked", 7) == 0);
}

#endif /* OUTBOX_LIBCURL_H */
