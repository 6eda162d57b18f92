/*
 * http.h
 *	  Deliveries as HTTP requests: the only folder that knows libcurl.
 */
#ifndef OUTBOX_HTTP_H
#define OUTBOX_HTTP_H

#include "base/outbox.h"

#include "transport/transport.h"

/*
 * The status is decided when the headers are complete.  What follows is read
 * for at most 64 kB or one second and then cut off, which changes nothing.
 *
 * Where the target asks for whole answers the body of a 2xx is read to its end,
 * within OUTBOX_ANSWER_MAX and the request's timeout.
 */
extern const OutboxTransport outbox_http_transport;

/*
 * Checks a URL as create_endpoint wants it: http or https, a host, no
 * userinfo, no control characters, and a literal address that is not refused.
 * NULL: fine.  Otherwise what is wrong, in words that last until the next
 * call; '*hint' what to do.
 */
extern const char *outbox_http_check_url(const char *url, const char **hint);

/* What is wrong with a proxy's URL; NULL: nothing. */
extern const char *outbox_http_check_proxy(const char *url);

/*
 * The name and the port that a parsed URL leads to, the name as libcurl knows it,
 * in ASCII.  (Before 7.88 libcurl cannot say what it makes of other letters, and
 * such a name is not found.)  An empty name: it is an address.  default_port, when
 * the URL has none; 0: the scheme's.  Returns NULL, or what is in the way.
 */
struct Curl_URL;
extern const char *outbox_http_split_url(struct Curl_URL *url, int default_port,
										 char *host, size_t size, int *port);

/* Writes * wherever the text names the host of the URL. */
extern void outbox_http_hide_host(char *text, const char *url);

/* Seconds from 'now' (unix) that a Retry-After value asks for; -1: unusable. */
extern int64 outbox_http_retry_after(const char *value, size_t len, int64 now);

#endif /* OUTBOX_HTTP_H */
