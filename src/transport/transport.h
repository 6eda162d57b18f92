/*
 * transport.h
 *	  The contract between an endpoint and the protocol of its deliveries.
 *
 * An endpoint starts deliveries, and gets a result for each.  The transport decides
 * what a status, a header or an error of the protocol means.  Outside of the
 * transport's folder there are only results.
 */
#ifndef OUTBOX_TRANSPORT_H
#define OUTBOX_TRANSPORT_H

#include "base/outbox.h"

#include "format/header_lines.h"

struct OutboxTransport;

/* Where the deliveries of one endpoint go, and how long they may take. */
typedef struct OutboxTarget
{
	const struct OutboxTransport *transport;
	char						 *url;
	int							  connect_timeout; /* ms */
	int							  timeout;		   /* ms, the whole request */
	bool						  whole_answer; /* the outcome has a good answer's body */
} OutboxTarget;

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

#define OUTBOX_RESPONSE_KEPT 1024 /* bytes of a failure's body that are kept */

/* The most bytes of a good answer's body, if the outcome includes it. */
#define OUTBOX_ANSWER_MAX (256 * 1024)

/* What the end of a delivery means. */
typedef enum OutboxResult
{
	OUTBOX_RESULT_DELIVERED, /* the receiver has it */
	/*
	 * The receiver has accepted it, but the rest of its answer could not be read.  A
	 * single delivery is done then, a batch has failed.  An acknowledgement that was
	 * lost is OUTBOX_RESULT_FAILED: the receiver may not have the event.
	 */
	OUTBOX_RESULT_UNKNOWN,
	OUTBOX_RESULT_FAILED, /* to be tried again */
	OUTBOX_RESULT_ABORT,  /* the receiver will never accept this event */
	OUTBOX_RESULT_DISABLE /* the receiver wants no events any more */
} OutboxResult;

typedef struct OutboxOutcome
{
	OutboxResult result;

	/* The receiver has too much to do: send to the endpoint more slowly. */
	bool		slow_down;
	bool		no_event_at_fault; /* any event would have failed */
	const char *why_disabled;	   /* static text */
	/* Seconds from now for which the receiver asks to wait; -1: it does not ask. */
	int64		  retry_after;
	int			  status; /* the protocol's own number, for views; 0: none */
	OutboxFailure failure;
	char		  error[256]; /* in words; "" if it was delivered */
	char		  body[OUTBOX_RESPONSE_KEPT];
	size_t		  body_len; /* length of what was kept of a failure's answer */
	const char	 *answer;	/* a whole answer, valid until 'done' returns */
	size_t		  answer_len;
	double		  duration; /* ms, without the wait for a target's first connection */
} OutboxOutcome;

/* One delivery in flight, or a place for one. */
typedef struct OutboxTransfer OutboxTransfer;

typedef void (*OutboxDone)(void *delivery, const OutboxOutcome *outcome);

/*
 * A protocol.  Only init throws errors.  Every other failure is an outcome.  A thread
 * that a library makes has all signals blocked, and calls no function of PostgreSQL.
 */
typedef struct OutboxTransport
{
	const char *name;

	/*
	 * Called once per process, after the settings are known.  'done' must be called
	 * for each delivery that was started and has ended, and only from poll.
	 */
	void (*init)(OutboxDone done);

	/* Called after the settings were read again. */
	void (*reload)(void);

	/*
	 * fd returns a descriptor that is readable when poll has something to do.  It
	 * stays the same.  timeout returns the milliseconds until poll must be called in
	 * any case; -1: never.
	 */
	int (*fd)(void);
	long (*timeout)(void);

	/*
	 * Continues all deliveries that can continue, without waiting.  'done' may start
	 * others.
	 */
	void (*poll)(void);

	/*
	 * acquire makes a place for one delivery, with space for header lines; NULL: out
	 * of memory.  It is then started or released.
	 */
	OutboxTransfer *(*acquire)(void);
	OutboxHeaders *(*headers)(OutboxTransfer *t);
	void (*release)(OutboxTransfer *t);

	/*
	 * Starts the delivery.  'body' does not change until 'done' or cancel.  'target'
	 * may, so the transport copies what it needs afterwards.  A delivery that cannot be
	 * started also ends in 'done', from a later poll.
	 */
	void (*start)(OutboxTransfer *t, const OutboxTarget *target, const char *body,
				  size_t body_len, void *delivery);

	/* Ends it without calling 'done'.  The receiver may have got the event. */
	void (*cancel)(OutboxTransfer *t);

	/* Called when the process ends. */
	void (*shutdown)(void);
} OutboxTransport;

#endif /* OUTBOX_TRANSPORT_H */
