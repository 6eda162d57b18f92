/*
 * http_failure.c
 *	  Owns why a request got no usable answer, in words.
 */
#include "transport/http/http_internal.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

OutboxPolls outbox_http_polls;

const char outbox_http_public[] = "public";

void
outbox_http_fail(OutboxTransfer *t, OutboxFailure failure, const char *words,
				 const char *detail)
{
	t->outcome.failure = failure;

	/* True if the request failed before the receiver had seen any event. */
	t->outcome.no_event_at_fault = failure != OUTBOX_FAILURE_TIMEOUT &&
		failure != OUTBOX_FAILURE_PROTOCOL && failure != OUTBOX_FAILURE_CLOSED;
	snprintf(t->outcome.error, sizeof(t->outcome.error), "%s%s%s", words,
			 detail[0] ? ": " : "", detail);
}

void
outbox_http_not_sent(OutboxTransfer *t, const char *lacks)
{
	t->outcome.result = OUTBOX_RESULT_UNAVAILABLE;
	t->outcome.lacks = lacks;
}

bool
outbox_http_is_lack(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

/* libcurl's text, with the host hidden: roles that may not read the URL may read it. */
static const char *
libcurl_text(OutboxTransfer *t)
{
	outbox_http_hide_host(t->errbuf, t->url);
	return t->errbuf;
}

/*
 * True if connect() failed because no local port was free.  Over IPv6 its errno may also mean
 * that the system does not speak it.  Then connect() for datagrams, which sends nothing, fails
 * with the same errno, while a lack of ports has another one there.
 */
static bool
lacks_port(const OutboxTransfer *t)
{
	bool reached;
	int	 fd;

	if (t->v6.sin6_family != AF_INET6)
		return true;
	fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return true;
	reached = connect(fd, (const struct sockaddr *) &t->v6, sizeof(t->v6)) == 0 ||
		errno != EADDRNOTAVAIL;
	(void) close(fd);
	return reached;
}

static void
explain_no_connection(OutboxTransfer *t)
{
	char detail[192];
	long number = 0;

	if (t->refused == outbox_http_public && !t->tried)
		outbox_http_fail(t, OUTBOX_FAILURE_ADDRESS,
						 "plain http goes to addresses in outbox.allowed_networks only",
						 "");
	else if (t->refused && !t->tried)
	{
		snprintf(detail, sizeof(detail),
				 "%s is %s, and outbox.allowed_networks does not name it",
				 t->lookup_host[0] == '\0' ? "the address in the URL" :
											 "the address that the name resolves to",
				 t->refused);
		outbox_http_fail(t, OUTBOX_FAILURE_ADDRESS, detail, "");
	}
	else if (t->socket_errno == EMFILE || t->socket_errno == ENFILE)
		outbox_http_not_sent(t, OUTBOX_LACKS_FILE);
	else if (t->socket_errno)
		outbox_http_not_sent(t, "the system gives no socket");
	else
	{
		curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &number);

		if (number == EADDRNOTAVAIL && lacks_port(t))
			outbox_http_not_sent(t, "no local port is free");
		else if (outbox_http_is_lack((int) number))
			outbox_http_not_sent(t, OUTBOX_LACKS_MEMORY);
		else
			outbox_http_fail(t, OUTBOX_FAILURE_CONNECT, "could not connect",
							 number ? strerror((int) number) : "");
	}
}

static int
timeout_of(const OutboxTransfer *t)
{
	return t->connected ? t->timeout : Min(t->connect_timeout, t->timeout);
}

bool
outbox_http_was_held_up(OutboxTransfer *t, CURLcode code)
{
	if (code != CURLE_OPERATION_TIMEDOUT ||
		!outbox_polls_held_up(&outbox_http_polls, t->begun_at + timeout_of(t)))
		return false;
	outbox_http_not_sent(t, NULL);
	strlcpy(t->outcome.error, OUTBOX_HELD_UP, sizeof(t->outcome.error));
	t->outcome.lost = t->sent;
	t->outcome.lost_words = OUTBOX_HELD_UP_LOST;
	return true;
}

static void
explain_timeout(OutboxTransfer *t)
{
	int ms = timeout_of(t);

	snprintf(t->outcome.error, sizeof(t->outcome.error), "timed out after %g s%s",
			 ms / 1000.0,
			 t->rest.rested	  ? OUTBOX_WHILE_RESTING :
				 t->connected ? "" :
								" while connecting");
	t->outcome.failure = OUTBOX_FAILURE_TIMEOUT;
}

/*
 * libcurl's text would repeat a name that the receiver has chosen, or of a file of ours.  It
 * may end in a host, which is that of the proxy if the proxy's handshake has failed.
 */
static void
explain_tls(OutboxTransfer *t, CURLcode code)
{
	const char *words = curl_easy_strerror(code);
	char	   *host = strstr(t->errbuf, " in connection to ");

	if (host)
		*host = '\0';
	if (strstr(t->errbuf, "subject name"))
		words = "the certificate is for another name";
	else if (code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CERTPROBLEM ||
			 code == CURLE_BAD_FUNCTION_ARGUMENT)
		words =
			"the certificate, private key or authorities that are set here cannot be used";
	else if (outbox_http_refuses_version(t->errbuf))
		words = "the receiver does not speak the version of HTTP that it is asked for";
	else if (t->errbuf[0])
		words = libcurl_text(t);
	outbox_http_fail(t, OUTBOX_FAILURE_TLS, "TLS", words);
}

/* libcurl has this text after the last of its own tries, over such connections only. */
bool
outbox_http_is_lost(const OutboxTransfer *t, CURLcode code)
{
	return outbox_curl_failure(code) == OUTBOX_FAILURE_CLOSED && t->connected &&
		!t->exceeded && t->head.state == OUTBOX_HEAD_STATUS && t->head.bytes == 0 &&
		(!t->tried || strncmp(t->errbuf, "Connection died", 15) == 0);
}

/* True if a proxy refused to connect.  libcurl's code for that depends on its version. */
static bool
explain_proxy(OutboxTransfer *t)
{
	char detail[64];
	long number = 0;

	curl_easy_getinfo(t->easy, CURLINFO_HTTP_CONNECTCODE, &number);
	if (t->connected || number < 300)
		return false;
	snprintf(detail, sizeof(detail), "the proxy answered %ld", number);
	outbox_http_fail(t, OUTBOX_FAILURE_CONNECT, detail, "");
	return true;
}

static void
explain_closed(OutboxTransfer *t, CURLcode code)
{
	/*
	 * Of HTTP/2, these are streams that were refused.  None of them was an attempt, so this
	 * request was not sent.
	 */
	if (t->set_version != CURL_HTTP_VERSION_1_1 && outbox_http_is_lost(t, code))
	{
		outbox_http_not_sent(t, "the receiver refuses streams of HTTP/2");
		t->outcome.lost = t->sent;
		return;
	}
	outbox_http_fail(t, OUTBOX_FAILURE_CLOSED,
					 "the connection was closed before the answer", "");
}

/* Stores in words why a request ended without a usable answer. */
void
outbox_http_explain(OutboxTransfer *t, CURLcode code)
{
	OutboxFailure failure = outbox_curl_failure(code);

	if (t->exceeded)
	{
		outbox_http_fail(t, t->connected ? OUTBOX_FAILURE_PROTOCOL : OUTBOX_FAILURE_TLS,
						 t->exceeded, "");
		return;
	}
	/* Newer libcurl finds it before the header line comes here. */
	if (t->head.state == OUTBOX_HEAD_CODED || code == CURLE_BAD_CONTENT_ENCODING)
	{
		outbox_http_fail(t, OUTBOX_FAILURE_PROTOCOL,
						 "the answer has a transfer coding other than chunked", "");
		return;
	}
	if (outbox_curl_line_is_too_long(code, t->connected))
		t->head.state = OUTBOX_HEAD_OVERSIZED;
	if (outbox_curl_line_is_too_long(code, t->connected) ||
		(failure == OUTBOX_FAILURE_PROTOCOL && t->head.state == OUTBOX_HEAD_OVERSIZED))
		outbox_http_fail(t, OUTBOX_FAILURE_PROTOCOL,
						 "the header of the answer is too long", "");
	else if (failure == OUTBOX_FAILURE_PROTOCOL)
		outbox_http_fail(t, failure, "the answer is not valid HTTP",
						 code == CURLE_WRITE_ERROR ? "" : libcurl_text(t));
	else if (failure == OUTBOX_FAILURE_DNS)
		outbox_http_fail(t, failure,
						 code == CURLE_COULDNT_RESOLVE_PROXY ?
							 "could not resolve the proxy's name" :
							 "could not resolve host",
						 "");
	else if ((failure == OUTBOX_FAILURE_CONNECT || failure == OUTBOX_FAILURE_CLOSED) &&
			 explain_proxy(t))
		return;
	else if (failure == OUTBOX_FAILURE_CONNECT)
		explain_no_connection(t);
	else if (outbox_http_was_held_up(t, code))
		return;
	else if (failure == OUTBOX_FAILURE_TIMEOUT)
		explain_timeout(t);
	else if (failure == OUTBOX_FAILURE_TLS && !t->connected &&
			 outbox_http_lacked_files() &&
			 (code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CERTPROBLEM ||
			  code == CURLE_BAD_FUNCTION_ARGUMENT))
		outbox_http_not_sent(t, OUTBOX_LACKS_FILE);
	else if (failure == OUTBOX_FAILURE_TLS)
		explain_tls(t, code);
	else if (failure == OUTBOX_FAILURE_CLOSED)
		explain_closed(t, code);
	else if (!t->connected && (code == CURLE_OUT_OF_MEMORY || code == CURLE_FAILED_INIT))
		outbox_http_not_sent(t, OUTBOX_LACKS_MEMORY);
	else if (code == CURLE_OUT_OF_MEMORY)
		outbox_http_fail(t, failure, "out of memory", "");
	else
		outbox_http_fail(t, failure, "libcurl", curl_easy_strerror(code));
}
