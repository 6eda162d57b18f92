/*
 * http.h
 *	  Deliveries as HTTP requests.  Only this folder uses libcurl.
 */
#ifndef OUTBOX_HTTP_H
#define OUTBOX_HTTP_H

#include "base/outbox.h"

#include "format/profile.h"
#include "transport/transport.h"

/*
 * The status is final when the headers are complete.  The body is read for one second
 * or 64 kB at most, and is then cut off.  This changes nothing.
 *
 * If the target asks for whole answers, the body of a 2xx is read to its end, up to the
 * bytes that it names and the request's timeout.
 */
extern const OutboxTransport outbox_http_transport;

/*
 * Checks a URL for create_endpoint(): http or https, a host, no userinfo, no control
 * characters, and no literal address that is refused.  Returns NULL if it is valid.
 * Otherwise returns the problem in words, valid until the next call, and sets '*hint'.
 */
extern const char *outbox_http_check_url(const char *url, const char **hint);

/*
 * Checks an endpoint's config as the contract says.  The names that it may have end with
 * NULL.
 */
extern const char *const outbox_http_config_names[];
extern const char *const outbox_http_credential_names[];
extern bool				 outbox_http_keeps_credentials(const OutboxTarget *from,
													   const OutboxTarget *to);
extern const char		*outbox_http_check_target(const OutboxTarget *target,
												  OutboxAdvice		 *advice);

/*
 * Reads how requests are signed, and which headers of outbox they have.  Texts stay in
 * the config.  Returns the problem with it, and sets '*hint'; NULL: none.
 */
extern const char *outbox_http_profile(const OutboxTarget *target, OutboxProfile *profile,
									   const char **hint);

/*
 * Adds the header lines that a request gets besides the lines of format/request.c, with a word
 * in place of secrets, and returns its first line, palloc'd; NULL: out of memory.
 */
extern char *outbox_http_shown(const OutboxTarget *target, struct OutboxHeaders *out,
							   size_t body_len);

/*
 * A request that asks its receiver whether it wants events.  _ask is called between
 * acquire and start: its end calls 'answered', and with an 'origin', which stays until then,
 * the method is OPTIONS.  _allows is true if the answer allows this origin, with so many
 * requests a second (0: any).
 */
extern void outbox_http_ask(OutboxTransfer *t, const char *origin, OutboxDone answered);
extern bool outbox_http_allows(const OutboxTransfer *t, double *rate);

/* Called in poll when the link of an endpoint has got a token, or failed to.  NULL: nothing. */
extern void (*outbox_http_link_changed)(int32_t endpoint);

/* Stores in 'services' the functions by which a sink bounds a peer's work for libcurl. */
extern void outbox_http_peer_services(OutboxServices *services);
extern void outbox_http_rest_services(OutboxServices *services,
									  bool (*worked)(int32_t endpoint),
									  bool (*owes)(int32_t endpoint));

/* True if libcurl's text says that the receiver does not speak this version of HTTP. */
extern bool outbox_http_refuses_version(const char *text);

/* Returns the problem with a proxy's URL; NULL: none. */
extern const char *outbox_http_check_proxy(const char *url);

/*
 * Writes the name and the port of a parsed URL: the name in ASCII, as libcurl looks it
 * up.  The name is empty if the host is an address.  (Before 7.88 libcurl cannot
 * convert other letters, and such a name is not found.)  'default_port' is used if the
 * URL has no port; 0: the scheme's port.  Returns NULL, or the problem with the host.
 */
struct Curl_URL;
extern const char *outbox_http_split_url(struct Curl_URL *url, int default_port,
										 char *host, size_t size, int *port);

/* Replaces each occurrence of the URL's host in the text by "*". */
extern void outbox_http_hide_host(char *text, const char *url);

/*
 * Returns the seconds from 'now' (unix) for which a Retry-After value asks to wait;
 * -1: it is not valid.
 */
extern int64 outbox_http_retry_after(const char *value, size_t len, int64 now);

#endif /* OUTBOX_HTTP_H */
