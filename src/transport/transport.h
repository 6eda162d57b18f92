/*
 * transport.h
 *	  The contract between an endpoint and the protocol that its deliveries go by.
 *
 * An endpoint starts deliveries and is told how each of them ended.  What a status,
 * a header or an error of the protocol means is decided by the transport: outside
 * of its folder there are only results.
 */
#ifndef OUTBOX_TRANSPORT_H
#define OUTBOX_TRANSPORT_H

#include "base/outbox.h"

#include "format/header_lines.h"

struct OutboxTransport;

/* Where the deliveries of one endpoint go, and how patient they are. */
typedef struct OutboxTarget
{
	const struct OutboxTransport *transport;
	char						 *url;
	int							  connect_timeout; /* ms */
	int							  timeout;		   /* ms, the whole request */
	bool whole_answer; /* the body of a good answer is part of the outcome */
} OutboxTarget;

/* Why a delivery got no answer: closed list. */
typedef enum OutboxFailure
{
	OUTBOX_FAILURE_NONE, /* there is a status code */
	OUTBOX_FAILURE_DNS,
	OUTBOX_FAILURE_CONNECT,
	OUTBOX_FAILURE_TLS,
	OUTBOX_FAILURE_TIMEOUT,
	OUTBOX_FAILURE_ADDRESS,	 /* refused by address.c */
	OUTBOX_FAILURE_PROTOCOL, /* malformed answer, headers beyond the cap */
	OUTBOX_FAILURE_CLOSED,	 /* connection ended before the answer */
	OUTBOX_FAILURE_INTERNAL	 /* out of memory, file descriptors … */
} OutboxFailure;

#define OUTBOX_RESPONSE_KEPT 1024 /* bytes of a failure's body */

/* Bytes of the body of a good answer, where it is part of the outcome. */
#define OUTBOX_ANSWER_MAX (256 * 1024)

/* What the end of a delivery means. */
typedef enum OutboxResult
{
	OUTBOX_RESULT_DELIVERED, /* the receiver has it */
	OUTBOX_RESULT_UNKNOWN,	 /* it may have it, but not all of its answer could
								 * be read: for a batch this is a failure */
	OUTBOX_RESULT_FAILED,	 /* to be tried again */
	OUTBOX_RESULT_ABORT,	 /* the receiver never wants this event */
	OUTBOX_RESULT_DISABLE	 /* the receiver wants no event any more */
} OutboxResult;

typedef struct OutboxOutcome
{
	OutboxResult  result;
	bool		  slow_down;		 /* the endpoint is sent to more slowly: the
								 * receiver has too much to do */
	bool		  no_event_at_fault; /* it would have failed with any event */
	const char	 *why_disabled;		 /* static */
	int64		  retry_after;		 /* seconds from now that the receiver asks for; -1:
								 * it does not */
	int			  status;			 /* the protocol's own number, for views; 0: none */
	OutboxFailure failure;
	char		  error[256]; /* in words; "" if it was delivered */
	char		  body[OUTBOX_RESPONSE_KEPT];
	size_t		  body_len; /* what was kept of the answer to a failure */
	const char	 *answer;	/* a whole answer, until 'done' returns */
	size_t		  answer_len;
	double		  duration; /* ms; waiting for a target's first connection not
								 * included */
} OutboxOutcome;

/* One delivery on its way, or a place for one. */
typedef struct OutboxTransfer OutboxTransfer;

typedef void (*OutboxDone)(void *delivery, const OutboxOutcome *outcome);

/*
 * A protocol.  Nothing but init throws an error: each failure is an outcome.  A
 * thread that a library makes has all signals blocked, and calls nothing of
 * PostgreSQL.
 */
typedef struct OutboxTransport
{
	const char *name;

	/*
	 * Once per process, after the settings are known.  'done' is to be called,
	 * from poll alone, for each delivery that was started and has ended.
	 */
	void (*init)(OutboxDone done);

	/* The settings were read again. */
	void (*reload)(void);

	/*
	 * A descriptor that is readable when poll has something to do; it stays the
	 * same.  Milliseconds until poll wants to be called anyway; -1: never.
	 */
	int (*fd)(void);
	long (*timeout)(void);

	/* Moves everything that can move, without waiting.  'done' may start others. */
	void (*poll)(void);

	/*
	 * A place for one delivery, with room for header lines; NULL: out of memory.
	 * Then it is started, or released.
	 */
	OutboxTransfer *(*acquire)(void);
	OutboxHeaders *(*headers)(OutboxTransfer *t);
	void (*release)(OutboxTransfer *t);

	/*
	 * Starts the delivery.  'body' and 'target' stay as they are until 'done' or
	 * cancel.  What cannot even be started ends in 'done', too, not here.
	 */
	void (*start)(OutboxTransfer *t, const OutboxTarget *target, const char *body,
				  size_t body_len, void *delivery);

	/* Ends it without calling 'done'.  The receiver may have got it. */
	void (*cancel)(OutboxTransfer *t);

	/* The process ends. */
	void (*shutdown)(void);
} OutboxTransport;

#endif /* OUTBOX_TRANSPORT_H */
