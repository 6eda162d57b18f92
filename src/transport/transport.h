/*
 * transport.h
 *	  The contract between an endpoint and the protocol of its deliveries.
 *
 * An endpoint starts deliveries, and gets a result for each.  The transport decides the
 * meaning of a status, a header or an error of the protocol.  Outside of the transport
 * there are only results.
 *
 * This file is installed, and includes nothing of outbox.  A library outbox_NAME that
 * is written against it is a sink: doc/writing-a-sink.md.
 */
#ifndef OUTBOX_TRANSPORT_H
#define OUTBOX_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct OutboxHeaders;
struct OutboxTransport;
struct sockaddr;

/* Raised with each change of this file.  A library of another version is not used. */
#define OUTBOX_TRANSPORT_ABI 11

/* An entry of an endpoint's config or credentials.  Text is UTF-8. */
typedef struct OutboxOption
{
	const char *name;
	const char *value; /* numbers and booleans as text */
} OutboxOption;

/* Overwrites and frees an allocated string. */
static inline void
outbox_wipe(char **secret)
{
	if (*secret)
		explicit_bzero(*secret, strlen(*secret));
	free(*secret);
	*secret = NULL;
}

/* The entry with this name; NULL: there is none. */
static inline const OutboxOption *
outbox_option_find(const OutboxOption *options, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (strcmp(options[i].name, name) == 0)
			return &options[i];
	return NULL;
}

/*
 * Where the deliveries of one endpoint go, and how long they may take.  'config' and
 * 'credentials' have only names that the transport knows.
 */
typedef struct OutboxTarget
{
	const struct OutboxTransport *transport;
	char						 *url;
	int							  nconfig;
	int							  ncredentials;
	OutboxOption				 *config;
	OutboxOption				 *credentials;
	int							  connect_timeout; /* ms */
	int							  timeout;		   /* ms, the whole request */
	uint16_t					  whole_answer;	   /* kB of a good answer; 0: none */
	bool						  kept_answer; /* a good answer is kept, as others are */
	int32_t						  endpoint;	   /* its number, for 'serves' */
} OutboxTarget;

/* Words of a transport about a target, besides the problem.  At first all are NULL. */
typedef struct OutboxAdvice
{
	const char *hint;
	const char
		*field; /* that the problem is in, "config" or "credentials"; NULL: the URL */
	const char *notice; /* words about a target that is accepted */
} OutboxAdvice;

/* Why a delivery got no answer.  The list is closed. */
typedef enum OutboxFailure
{
	OUTBOX_FAILURE_NONE, /* there is a status code */
	OUTBOX_FAILURE_DNS,
	OUTBOX_FAILURE_CONNECT,
	OUTBOX_FAILURE_TLS,
	OUTBOX_FAILURE_TIMEOUT,
	OUTBOX_FAILURE_ADDRESS,	 /* refused by address.c */
	OUTBOX_FAILURE_PROTOCOL, /* malformed answer, or headers above the limit */
	OUTBOX_FAILURE_CLOSED,	 /* connection ended before the answer */
	OUTBOX_FAILURE_INTERNAL	 /* out of memory, out of file descriptors … */
} OutboxFailure;

/* The most bytes of a good answer's body that an outcome includes: that to a batch. */
#define OUTBOX_ANSWER_MAX (256 * 1024)

/* The lack of a place for the lookup of a name, as 'lacks' of an outcome. */
#define OUTBOX_LACKS_LOOKUPS "too many host names are being looked up"

/* The result of a delivery. */
typedef enum OutboxResult
{
	OUTBOX_RESULT_DELIVERED, /* the receiver has it */
	/*
	 * The receiver has accepted it, but the rest of its answer could not be read.  A
	 * single delivery is done then, a batch has failed.  An acknowledgement that was
	 * lost is OUTBOX_RESULT_FAILED: the receiver may not have the event.
	 */
	OUTBOX_RESULT_UNKNOWN,
	OUTBOX_RESULT_FAILED,  /* to be tried again */
	OUTBOX_RESULT_ABORT,   /* the receiver will never accept this event */
	OUTBOX_RESULT_DISABLE, /* the receiver wants no events any more */
	/*
	 * The link is down, or something of our own is used up: that says nothing about the
	 * event or its receiver.  It is put back as if it had never been taken, and nothing
	 * is counted.  'lacks' names the resource that is used up.
	 */
	OUTBOX_RESULT_UNAVAILABLE
} OutboxResult;

/* How long the parts of a request took, in ms.  -1: there was no such part, or no end of it. */
typedef struct OutboxTimes
{
	float lookup; /* of the name, which may be known for a moment */
	float connect;
	float tls;
	float first_byte; /* from the beginning of the request to that of the answer */
} OutboxTimes;

typedef struct OutboxOutcome
{
	OutboxResult result;

	/* The receiver has too much to do: send to the endpoint more slowly. */
	bool		slow_down;
	bool		no_event_at_fault; /* any event would have failed */
	bool		event_at_fault;	   /* the receiver works, and refuses this one */
	const char *why_disabled;	   /* static text */
	/*
	 * So often it was sent before without an answer, over a connection that ended while
	 * the receiver may have read it.  No such request counts.  'lost_words': static text.
	 * With OUTBOX_RESULT_UNAVAILABLE 'status' is of the last of them.
	 */
	int			lost;
	const char *lost_words;
	const char *lacks; /* the missing resource, static text; NULL: nothing lacks any more,
						* or the link, which then says itself when it is up */
	/* Seconds from now for which the receiver asks to wait; -1: it does not ask. */
	int64_t		  retry_after;
	int			  status; /* the protocol's own number, for views; 0: none */
	bool		  http_2; /* it was answered over HTTP/2 */
	OutboxFailure failure;
	/*
	 * The parts that are kept of an answer that failed, or of any with 'kept_answer':
	 * its headers, as lines "name: value", and the first bytes of its body.  As all
	 * pointers here they are valid until 'done' returns.
	 */
	const char		  *head;
	size_t			   head_len;
	const char		  *body;
	size_t			   body_len;
	const OutboxTimes *times; /* NULL: not known */

	char		error[256]; /* in words; "" if it was delivered */
	const char *answer;		/* a whole answer */
	size_t		answer_len;
	double		duration; /* ms, without the wait for a target's first connection */
} OutboxOutcome;

static inline void
outbox_outcome_begin(OutboxOutcome *o, OutboxResult result)
{
	memset(o, 0, offsetof(OutboxOutcome, error) + 1);
	memset(&o->answer, 0, sizeof(*o) - offsetof(OutboxOutcome, answer));
	o->result = result;
	o->retry_after = -1;
}

typedef struct OutboxHeader
{
	const char *name;
	size_t		name_len;
	const char *value;
	size_t		value_len;
} OutboxHeader;

/*
 * The content of a delivery.  'body' does not change until 'done' or cancel.  All other
 * pointers are valid until start returns, and are NULL for a transport that has header
 * lines.  Text is UTF-8.
 */
typedef struct OutboxMessage
{
	const char *body;
	size_t		body_len;
	const char *id; /* of the event, as text: receivers recognize a repetition by it */
	const char *topic;
	const char *key; /* NULL: none */
	size_t		key_len;
	int64_t		sequence;
	int64_t		created_ms; /* unix time */
	int			attempt;	/* from 1 */
	int			nheaders;
	const OutboxHeader *headers;
} OutboxMessage;

/* One delivery in flight, or a place for one. */
typedef struct OutboxTransfer OutboxTransfer;

/* The way from one endpoint to its receiver. */
typedef struct OutboxLink OutboxLink;

typedef enum OutboxLinkState
{
	OUTBOX_LINK_UP,
	/*
	 * One delivery may find out whether it is up, also while others are in flight.  Then
	 * state is called again, and says when the next one may.
	 */
	OUTBOX_LINK_PROBING,
	OUTBOX_LINK_DOWN /* nothing is started */
} OutboxLinkState;

typedef void (*OutboxDone)(void *delivery, const OutboxOutcome *outcome);

/*
 * A request of libcurl.  'easy' and 'endpoint' are set by the transport, and the rest is 0
 * at first.
 */
typedef struct OutboxRest
{
	struct OutboxRest *previous; /* of those that rest */
	struct OutboxRest *next;
	void			  *easy; /* the handle */
	int32_t			   endpoint;
	bool			   rests;
	bool			   rested; /* since the request began */
	bool			   paused; /* the handle is, also when its request has ended */
} OutboxRest;

/* For the words of a request that timed out and has rested */
#define OUTBOX_WHILE_RESTING ", because its answer took too much of the worker's time"

/* The functions that a transport may call. */
typedef struct OutboxServices
{
	/*
	 * Must be called for each delivery that was started and has ended, unless it was
	 * cancelled.  Only from poll.
	 */
	OutboxDone done;

	/*
	 * Must be asked before each connection, with the final address.  False: nothing may
	 * be sent there, and '*why' says why, as a static text.  'encrypted': the
	 * connection is, and the receiver is authenticated.  Any thread may call it.
	 */
	bool (*may_connect)(const struct sockaddr *address, bool encrypted, const char **why);

	/*
	 * For a sink that uses libcurl from the worker's thread: limits of the work that a
	 * peer can cause.  bound_tls must be called for each connection of OpenSSL, with
	 * its SSL_CTX, before the handshake.  'two': HTTP/2 is offered.  If the handshake
	 * is refused, '*why' says why.  False: out of memory.  NULL: libcurl has another
	 * TLS library.  peer_event must be called before each event of a socket is passed
	 * to libcurl, and peer_ended after it: a text says that the peer did too much, and
	 * that the connection was ended.  peer_rests: no request uses the socket any more.
	 */
	bool (*bound_tls)(void *ssl_ctx, bool two, const char **why);
	const char *(*peer_event)(int fd);
	const char *(*peer_ended)(void);
	void (*peer_rests)(int fd);

	/*
	 * Says for which endpoint the library works from here on, or that it is not known
	 * (0).  If a call of the transport lasts 2 s, the process ends, and the next one does
	 * not serve this endpoint for a while.  Only the worker's own thread may call it, within
	 * a call of the transport.  It costs next to nothing.
	 */
	void (*serves)(int32_t endpoint);

	/*
	 * To be called by each thread that a library has made: it works for '*endpoint' until
	 * it ends.  If it follows a NULL or calls abort(), the worker ends, and no session of
	 * the server does.  The endpoint is then held, as after a call that did not return.
	 */
	void (*thread_serves)(const volatile int32_t *endpoint);

	/*
	 * For a sink that uses libcurl from the worker's thread: a request whose endpoint has
	 * taken more work than it may rests, that is, libcurl does not work for it.
	 * rest_worked must be called by libcurl's progress function, when the request has a
	 * connection or not.  rest_begins: before the request is sent.  rest_leave: it is
	 * taken from libcurl.  rests_step: in each poll, those whose endpoints have paid go on.
	 * rests_deadline: when the next poll has to be, in ms of CLOCK_MONOTONIC.
	 * rests_timer: after libcurl's timer was run, returns when it is to run next, which
	 * is later than 'at' if libcurl works for requests that rest.  A request that begins
	 * does not wait for that.
	 */
	void (*rest_worked)(OutboxRest *rest, bool connected);
	void (*rest_begins)(OutboxRest *rest);
	void (*rest_leave)(OutboxRest *rest);
	void (*rests_step)(void);
	int64_t (*rests_deadline)(void);
	int64_t (*rests_timer)(int64_t at);
} OutboxServices;

/*
 * A protocol.  Only init throws errors.  Every other failure is an outcome.  A thread
 * that a library makes has all signals blocked, and calls no function of PostgreSQL.
 */
typedef struct OutboxTransport
{
	uint32_t abi;  /* OUTBOX_TRANSPORT_ABI */
	uint32_t size; /* of this struct */

	const char *name;
	size_t		memory; /* bytes that a delivery takes besides its body, about */

	/*
	 * Defaults of an endpoint whose creator names no format, no max_in_flight and no
	 * timeout.  NULL and 0: the defaults of webhooks.
	 */
	const char *default_format;
	int			default_in_flight;
	int			default_timeout; /* ms */

	/*
	 * With the format cloudevents-binary the attributes of an event are headers of the
	 * message, whose names begin with this, as the protocol's binding for CloudEvents
	 * says.  At most 15 characters.  NULL: the format is refused.
	 */
	const char *attribute_prefix;

	/*
	 * The names that an endpoint's config and credentials may have.  Each list ends
	 * with NULL, and a list that is NULL is empty.
	 */
	const char *const *config_names;
	const char *const *credential_names;

	/*
	 * Called in the session that creates or changes an endpoint, before anything else
	 * of the transport and without init.  Returns the problem with the target; NULL:
	 * none.  It knows the URL, the config and the names of the credentials, whose values are
	 * NULL.  It is pure: it makes no connection, no file and no thread.  NULL: every
	 * target is accepted.
	 */
	const char *(*check)(const OutboxTarget *target, OutboxAdvice *advice);

	/*
	 * Called as check is, when an endpoint is changed whose stored credentials are to stay.
	 * True if with 'to' they go to no other server than with 'from', and are as well
	 * protected.  If not, they have to be given again.  NULL: they stay only if URL and
	 * config stay.
	 */
	bool (*keeps_credentials)(const OutboxTarget *from, const OutboxTarget *to);

	/* Called once per process, after the settings are known. */
	void (*init)(const OutboxServices *services);

	/* Called after the settings were read again. */
	void (*reload)(void);

	/*
	 * fd returns a descriptor that is readable when poll has something to do.  It
	 * stays the same.  -1: there is none.  timeout returns the milliseconds until poll
	 * must be called in any case; -1: never.
	 */
	int (*fd)(void);
	long (*timeout)(void);

	/*
	 * Continues all deliveries that can continue, without waiting.  'done' may start
	 * others.
	 */
	void (*poll)(void);

	/*
	 * A transport that has no links has NULL here.  One that has header lines has links
	 * for targets with credentials only.  A paused or disabled endpoint has none, and no
	 * endpoint has one while outbox.enabled is off.  open begins to connect, without
	 * waiting, and is called once per endpoint and change of its settings.  It copies the
	 * parts of the target that it needs, and clears the credentials in close.  NULL: the
	 * target cannot be used, and 'reason' says why.  Then open is called again every 10 s,
	 * because memory may have lacked.  state is called in each round of the worker in which
	 * something happens to the endpoint, and else about once a second, ten times while the
	 * link is not up, or less often where many have a link.  Unless the link is up, it
	 * writes a reason in words, of which views show printable ASCII.  It may also write one
	 * for a link that is up, if something holds deliveries up there.  The transport
	 * connects again by itself.  close may be called while deliveries are in flight.  They
	 * still end in 'done'.
	 */
	OutboxLink *(*open)(const OutboxTarget *target, char *reason, size_t size);
	OutboxLinkState (*state)(OutboxLink *link, char *reason, size_t size);
	void (*close)(OutboxLink *link);

	/*
	 * acquire makes a place for one delivery; NULL: out of memory.  It is then started
	 * or released.  headers returns its space for header lines.  It is NULL for a
	 * transport that takes the headers from the message.
	 */
	OutboxTransfer *(*acquire)(void);
	struct OutboxHeaders *(*headers)(OutboxTransfer *t);
	void (*release)(OutboxTransfer *t);

	/*
	 * Starts the delivery.  'target' may change later, so the transport copies the
	 * parts that it needs afterwards.  'link' is NULL without links.  A delivery that
	 * cannot be started also ends in 'done', from a later poll.
	 */
	void (*start)(OutboxTransfer *t, const OutboxTarget *target, OutboxLink *link,
				  const OutboxMessage *message, void *delivery);

	/*
	 * Called when the worker has started all deliveries that it can start now, and
	 * before it prepares a large payload, which may be in 'done'.  Deliveries that
	 * start has only prepared go out now, because the worker may do other work before
	 * the next poll.  It is not called after poll, which itself sends the deliveries
	 * that 'done' has started.  NULL: start does all.
	 */
	void (*flush)(void);

	/*
	 * How many deliveries to the target it can use at the same time now.  With 'more'
	 * so many are under way, and others wait for them.  The endpoint keeps the others
	 * back, and asks again within some milliseconds.  NULL: as many as the endpoint may
	 * have.
	 */
	int (*width)(const OutboxTarget *target, bool more);

	/* Ends it without calling 'done'.  The receiver may have got the event. */
	void (*cancel)(OutboxTransfer *t);

	/*
	 * Called when the worker is told to end.  An error ends it without.  Exit handlers of
	 * libraries never run in it, so nothing frees memory that a thread still uses.
	 */
	void (*shutdown)(void);
} OutboxTransport;

/*
 * The function that a library outbox_NAME exports.  It serves the endpoints whose URL
 * begins with NAME:// or, encrypted, with NAMEs://, or with arn:NAME.
 */
#define OUTBOX_SINK_FUNCTION "outbox_sink"
typedef const OutboxTransport *(*OutboxSinkFunction)(void);

#endif /* OUTBOX_TRANSPORT_H */
