/*
 * http.h
 *	  Requests in flight: the only room that knows libcurl.
 *
 * Narrow on purpose, so that another transport can stand here: start this
 * delivery, this one ended thus, cancel.  Nothing below throws an SQL error
 * from inside libcurl; every failure of a request is an outcome.
 */
#ifndef OUTBOX_HTTP_H
#define OUTBOX_HTTP_H

#include "base/outbox.h"

#include "format/header_lines.h"

/* Where the requests of one endpoint go, and how patient they are. */
typedef struct OutboxTarget
{
	char	   *url;
	int			connect_timeout;	/* ms */
	int			timeout;		/* ms, the whole request */
	bool		whole_answer;	/* the body of a 2xx is part of the outcome */
} OutboxTarget;

/* Why a request did not end in a response: closed list, shown in views. */
typedef enum OutboxFailure
{
	OUTBOX_FAILURE_NONE,		/* there is a status code */
	OUTBOX_FAILURE_DNS,
	OUTBOX_FAILURE_CONNECT,
	OUTBOX_FAILURE_TLS,
	OUTBOX_FAILURE_TIMEOUT,
	OUTBOX_FAILURE_ADDRESS,		/* refused by address.c */
	OUTBOX_FAILURE_PROTOCOL,	/* malformed answer, headers beyond the cap */
	OUTBOX_FAILURE_CLOSED,		/* connection ended before the answer */
	OUTBOX_FAILURE_INTERNAL		/* out of memory, file descriptors … */
} OutboxFailure;

#define OUTBOX_RESPONSE_KEPT 1024	/* bytes of a failure's body */

/* Bytes of the body of a 2xx, where it is part of the outcome. */
#define OUTBOX_ANSWER_MAX (256 * 1024)

/*
 * The status is decided when the headers are complete.  What follows is read
 * for at most 64 kB or one second and then cut off, which changes nothing.
 *
 * Where the target asks for whole answers the body of a 2xx is read to its end.
 * If it has none within OUTBOX_ANSWER_MAX and the request's timeout, there is a
 * status and an 'error', and the answer is unknown.
 */
typedef struct OutboxOutcome
{
	int			status;			/* HTTP status, 0: none */
	OutboxFailure failure;
	char		error[256];		/* in words; "" on 2xx */
	char		body[OUTBOX_RESPONSE_KEPT];
	size_t		body_len;		/* what was kept */
	const char *answer;			/* a whole answer, until 'done' returns */
	size_t		answer_len;
	int64		retry_after;	/* seconds from now, -1: none or unusable */
	bool		disable;		/* webhook-delivery: disable */
	bool		abort_message;	/* webhook-delivery: abort-message */
	double		duration;		/* ms; waiting for a target's first connection not
								 * included */
} OutboxOutcome;

typedef struct OutboxTransfer OutboxTransfer;

typedef void (*OutboxDone) (void *delivery, const OutboxOutcome *outcome);

/* Once per process, after the settings are known. Errors: ereport. */
extern void outbox_http_init(OutboxDone done);

/* After SIGHUP: TLS files, allowed networks, proxy. */
extern void outbox_http_reload(void);

/* Readable when outbox_http_poll() has something to do. */
extern int	outbox_http_fd(void);

/* Milliseconds until outbox_http_poll() wants to be called anyway; -1: never. */
extern long outbox_http_timeout(void);

/*
 * Moves everything that can move, without waiting; calls 'done' for each
 * request that ended.  'done' is called outside libcurl and may start others.
 */
extern void outbox_http_poll(void);

/*
 * A transfer to fill: its headers are reset.  Then start it or give it back.
 * NULL: out of memory.
 */
extern OutboxTransfer *outbox_http_acquire(void);
extern OutboxHeaders *outbox_http_headers(OutboxTransfer *t);
extern void outbox_http_release(OutboxTransfer *t);

/*
 * Starts the request.  'body' and 'target' must stay as they are until 'done'
 * or cancel.  A failure to start is reported through 'done' from the next
 * poll, never from here.
 */
extern void outbox_http_start(OutboxTransfer *t, const OutboxTarget *target,
							  const char *body, size_t body_len,
							  void *delivery);

/* Ends the request without calling 'done'. */
extern void outbox_http_cancel(OutboxTransfer *t);

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

extern void outbox_http_shutdown(void);

#endif							/* OUTBOX_HTTP_H */
