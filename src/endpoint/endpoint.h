/*
 * endpoint.h
 *	  The data of one endpoint in a worker: its window on the log, its deliveries,
 *	  key lanes, retries, pace and status.  It uses neither SQL nor HTTP.
 */
#ifndef OUTBOX_ENDPOINT_H
#define OUTBOX_ENDPOINT_H

#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "base/listed.h"
#include "base/memory.h"
#include "endpoint/filter.h"
#include "endpoint/flow.h"
#include "endpoint/pace.h"
#include "endpoint/tenant.h"
#include "format/request.h"
#include "log/log.h"
#include "server/shmem.h"
#include "transport/transport.h"

struct OutboxBatch;
struct OutboxEndpoint;
struct OutboxLane;

/*
 * A delivery is on the list of its state.  A delivery that succeeded and has no row in
 * outbox.parked is on none, because it is freed.  A delivery that is held is on a second
 * list, queue.held.
 */
typedef enum OutboxDeliveryState
{
	OUTBOX_DELIVERY_READY, /* may be sent as soon as there is a slot */
	OUTBOX_DELIVERY_IN_FLIGHT,
	OUTBOX_DELIVERY_WAITING, /* behind the head of its lane */
	OUTBOX_DELIVERY_SETTLING /* the next settle changes its row */
} OutboxDeliveryState;

/* The change that the next settle makes to the delivery's row in outbox.parked. */
typedef enum OutboxVerdict
{
	OUTBOX_VERDICT_NONE,
	OUTBOX_VERDICT_DELIVERED, /* the row, if there is one, is deleted */
	OUTBOX_VERDICT_RETRY,	  /* 'retrying', due at next_attempt_at */
	OUTBOX_VERDICT_BLOCKED,	  /* 'blocked' behind its key's head */
	OUTBOX_VERDICT_DEAD		  /* 'dead', for 'reason' */
} OutboxVerdict;

typedef struct OutboxDelivery
{
	dlist_node			   node;
	dlist_node			   held_node; /* of queue.held */
	OutboxDeliveryState	   state;
	OutboxVerdict		   verdict;
	struct OutboxEndpoint *endpoint;
	struct OutboxLane	  *lane;  /* NULL: unordered */
	struct OutboxBatch	  *batch; /* that it is in flight with (NULL: none) */
	int64				   group; /* Only deliveries of the same group are retried in one
								   * batch with it.  0: it may be in a batch with any
								   * other delivery of group 0. */
	OutboxEvent			  *event;
	OutboxEvent			  *sent; /* the event that its request was made of, or NULL */
	int64				   seq;
	bool				   parked;		/* true if it has a row in outbox.parked */
	bool				   was_retry;	/* true if its row says 'retrying', or has to be
										 * written again when it is parked */
	bool				   row_retries; /* true if the row said 'retrying' when it was
										 * read */
	bool				   probe;		/* true if it was sent while the breaker was
										 * open */
	bool				   unsent;		/* true if it waits because its topic is refused,
										 * and there was no request */
	OutboxRedelivery	   redelivery;
	int					   attempts;		 /* failed ones that count */
	TimestampTz			   first_attempt_at; /* 0: none failed yet */
	TimestampTz			   started_at;		 /* when its request was started */
	TimestampTz			   next_attempt_at;
	const OutboxTransport *transport; /* of the transfer */
	OutboxTransfer		  *transfer;
	int					   last_status;
	uint16				   url_version; /* of the endpoint when it was last sent */
	const char			  *reason;		/* why it is dead, a static string */
	char				  *error;		/* of the last failure, in the endpoint's context
									* (NULL: none) */
} OutboxDelivery;

/* The error of one that is unsent, by which its row is known. */
#define OUTBOX_UNSENT_WORDS "the receiver refuses its topic"

/* The deliveries of one key, in the order of the log. */
typedef struct OutboxLane
{
	char		   *key;
	OutboxDelivery *head;		  /* ready or in flight (NULL: none) */
	int				blockers;	  /* number of failed heads that are being settled, or are
								   * in queue.retry_index */
	bool			asked;		  /* true if 'retrying' and 'dead' agree with
								   * outbox.parked */
	bool			retrying;	  /* true if a head waits there that memory does not
								   * have */
	bool			dead;		  /* true if a dead head there blocks the key */
	bool			parked;		  /* true if followers may be in outbox.parked, or on
								   * 'settling' */
	int64			first_parked; /* no parked follower has a lower seq */
	int				nwaiting;
	dlist_head		waiting;	  /* followers in memory, by seq */
	dlist_node		loading_node; /* its parked followers are to be loaded */
	dlist_node		parking_node; /* its waiting followers are to be parked */
	dlist_node		asking_node;  /* outbox.parked has to be read for it */
	int64			failed_with; /* while the answer to a batch is processed: the group of
								  * the lane's first failure, 0: none */
} OutboxLane;

/* A parked delivery whose retry is not due yet, or is being loaded. */
typedef struct OutboxRetry
{
	pairingheap_node node;
	TimestampTz		 due;
	int64			 seq;
	int64			 group;	  /* loaded together with others of it (0: none) */
	OutboxLane		*lane;	  /* the lane that it blocks (NULL: none) */
	bool			 tried;	  /* false if no attempt of it has failed */
	bool			 loading; /* true if it is off the heap and its row is being read */
} OutboxRetry;

typedef enum OutboxOrdering
{
	OUTBOX_ORDER_KEY,
	OUTBOX_ORDER_NONE,
	OUTBOX_ORDER_STRICT
} OutboxOrdering;

/*
 * Latencies of the last five minutes, in logarithmic buckets.  Those of a bucket of figures
 * are all there until the first delivery of the next.
 */
#define OUTBOX_HISTOGRAM_BUCKETS 128
#define OUTBOX_HISTOGRAM_MINUTES 5
#ifndef OUTBOX_FIGURES_TIME /* 079 is built with a shorter one */
#define OUTBOX_FIGURES_TIME (OUTBOX_HISTOGRAM_MINUTES * USECS_PER_MINUTE)
#endif

/* These counters have figures: the first ones. */
#define OUTBOX_FIGURES (OUTBOX_COUNT_UNREADABLE + 1)

typedef struct OutboxHistogram
{
	int64  minute[OUTBOX_HISTOGRAM_MINUTES]; /* the minute since 2000 that each row
											  * counts */
	int	   first;							 /* buckets before this one are 0 ... */
	int	   nbuckets;						 /* ... and from this one on */
	uint32 count[OUTBOX_HISTOGRAM_MINUTES][OUTBOX_HISTOGRAM_BUCKETS];
} OutboxHistogram;

/* States of the rows of outbox.parked that are counted. */
typedef enum OutboxRowStatus
{
	OUTBOX_ROW_RETRYING,
	OUTBOX_ROW_BLOCKED,
	OUTBOX_ROW_DEAD,
	OUTBOX_ROW_STATUSES
} OutboxRowStatus;

/* An event that was read for an endpoint. */
typedef struct OutboxWindowEntry
{
	OutboxEvent		  *event;
	size_t			   bytes;
	bool			   cancelled; /* true if it will not be sent */
	bool			   forgotten; /* true if that is because it is forgotten */
	OutboxFilterResult filter;	  /* result of the endpoint's filter */
} OutboxWindowEntry;

/*
 * The endpoint's settings, as outbox.endpoint_settings has them.  Written by
 * endpoint_settings.c and reload.c.
 */
typedef struct OutboxEndpointConfig
{
	char				  *name;
	struct OutboxSettings *settings; /* the memory of all that is pointed to here */
	int					   npatterns;
	int					   batch_size; /* 1: no batches */
	char				 **patterns;
	JsonPath			  *filter;		 /* NULL: none */
	uint64				   row_version;	 /* changes with the stored rows: made of their
									   * xmin */
	uint64				   keys_version; /* of the key file that opened them */
	int64				   version;		 /* of the subscription */
	int64				   generation;	 /* of the position, raised by a seek */
	OutboxTarget		   target;
	OutboxRequestConfig	   request;
	OutboxOrdering		   ordering;
	bool				   block_on_dead;
	int8				   log_attempts; /* an OutboxLogAttempts (-1: as the setting) */
	uint16				   url_version;	 /* raised with another URL */
	uint32				   credential_files; /* bit n: the value of credentials[n] is the
											  * name of a file */
	int					   max_attempts;	 /* 0: no limit */
	int64				   max_age;			 /* µs from the first attempt */
	int64				   batch_wait;		 /* µs */
	int64				   disable_after;	 /* µs of nothing but failures (0: never) */
	TimestampTz			   previous_until;	 /* end of a rotation of secrets (DT_NOEND:
										 * none) */
} OutboxEndpointConfig;

/*
 * Whether requests may be sent to the endpoint, and why not.  Written by
 * endpoint_settings.c, outcome.c, proofs.c, reload.c, roster.c, settle.c and status.c.
 */
typedef struct OutboxEndpointStatus
{
	bool		paused;
	bool		disabled;
	bool		state_dirty;   /* true if its receiver disabled it and that is not stored
								* yet */
	bool		state_written; /* true if the current settle has stored it */
	bool		failing_told;  /* true if outbox.failing was made of 'failing_since' */
	bool		failing_fresh; /* true if it was, since the last settle */
	bool		recovered;	   /* true if its breaker has closed since the last settle */
	bool		unstorable;	   /* true if its last settle failed: nothing is sent before
								* one succeeds */
	const char *held_for;	   /* why its secrets or its sink cannot be used (NULL: they
								* can) */
	TimestampTz stuck_until;   /* held because a call for it did not return (0: it did) */
	TimestampTz state_since;
	const char *reason;		   /* static, or with the settings */
	TimestampTz failing_since; /* first failure since the last success (0: none) */
	TimestampTz failed_at;	   /* the last one, if 'failing_since' is not 0 */
	int64		clock_ahead;   /* outbox_status_clock_ahead() as these two know it */
	uint64		rest_xid;	   /* the next one when its receiver last asked for a rest
								 * (0: it has not) */
} OutboxEndpointStatus;

/* How a receiver proves that it wants events. */
typedef enum OutboxChallenge
{
	OUTBOX_CHALLENGE_NONE,
	OUTBOX_CHALLENGE_OPTIONS, /* by the handshake of CloudEvents' webhooks */
	OUTBOX_CHALLENGE_ECHO	  /* it repeats a part of a signed request */
} OutboxChallenge;

/* So many requests ask for the proof.  The portal counts them in outbox.portal_spend(). */
#define OUTBOX_CHALLENGES_MAX 10

/*
 * The proof that an endpoint lacks.  Nothing is sent to it meanwhile.  Written by
 * challenges.c, endpoint_settings.c, proofs.c and settle.c.
 */
typedef struct OutboxProof
{
	OutboxChallenge challenge; /* NONE: there is a proof, or none is needed */
	int64			version;   /* of the subscription that it is for */
	int				stored;	   /* requests that have asked for it, as the table says */
	int				unstored;  /* the number that the next settle adds */
	bool			found;	  /* true if the receiver gave it, and it is not stored yet */
	double			rate;	  /* requests a second that it allows (0: any) */
	bool			written;  /* true if the current settle has stored these */
	TimestampTz		again_at; /* time of the next request (0: not known yet) */
	struct OutboxAsked *asked; /* the request in flight (NULL: none) */
	char				reason[128];
} OutboxProof;

/*
 * The way to a receiver, for a sink or for credentials that have links.  Written by
 * dispatch.c, links.c and status.c.
 */
typedef struct OutboxEndpointLink
{
	const OutboxTransport *transport;	  /* that has the link */
	OutboxLink			  *handle;		  /* NULL: there is none */
	uint64				   row_version;	  /* of the settings that it was opened for */
	uint64				   keys_version;  /* the same */
	uint64				   files_version; /* of the files that its credentials are in */
	TimestampTz		look_at;   /* when it is examined again, although nothing is sent */
	TimestampTz		opened_at; /* or could not be opened */
	uint64			reloads;   /* of the settings of the server, before it was opened */
	OutboxLinkState state;
	char			reason[128]; /* reason why it is not up, or is held up */
} OutboxEndpointLink;

/*
 * How far the endpoint has read the log, and the events that it has read.
 */
typedef struct OutboxFeed
{
	OutboxCursor	   cursor; /* 'read' NULL: it is attached, and reads with the head */
	OutboxCursor	   frontier;	  /* every event up to here is done, parked, ready, in
									   * flight or waiting */
	OutboxCursor	   own;			  /* the ticks between which the endpoint itself has
									   * read the window's part of 'reading', if its pages
									   * have another 'read' (read NULL: none) */
	OutboxCursor	   counter;		  /* 'backlog' goes up to here ('read' NULL: to the
									   * head) */
	int64			   backlog;		  /* Number of matching events beyond the frontier, as
									   * far as they were counted.  It includes the window
									   * and leaves out events that will not be sent. */
	TimestampTz		   backlog_since; /* no counted event of the backlog that is beyond
									   * the window was emitted before this time */
	OutboxWindowEntry *window;		  /* events that have not taken their place: a ring */
	int				   window_size;	  /* entries that were allocated */
	int				   window_start;
	int				   window_count;
	size_t			   window_bytes;   /* sum of the entries' bytes */
	int				   ncancelled;	   /* entries of the window that will not be sent */
	int				   window_known;   /* number of entries at the front of the window for
									    * whose keys memory knows the rows of
									    * outbox.parked */
	int64			   cancelled_upto; /* no event with a higher seq was cancelled */
	bool			   drop_window;	   /* true if it has to be read again from the
										* frontier */
	uint64			   page; /* the last page that was read for it with others */
} OutboxFeed;

/* The endpoint's deliveries, by the reason for which they wait. */
typedef struct OutboxQueue
{
	dlist_head		   ready;
	dlist_head		   in_flight;
	dlist_head		   settling;
	dlist_head		   held; /* deliveries without a row that are ready, in flight or
							  * waiting */
	int				   nheld;
	int				   nready;
	int				   nin_flight; /* requests, of which a batch is one */
	const char		  *lacks;	   /* the lack that last held a request back, though the
							   * endpoint may send (NULL: none yet) */
	TimestampTz		   lacked_at;  /* when that was, or may end */
	int				   nheads;	   /* deliveries in flight that are their lane's
										 * head, or have no lane */
	int				   nwaiting;
	int				   nloaded_blocked; /* ready or waiting, with a row and without
										 * 'was_retry' */
	int				   nloaded_retries; /* ready or waiting, with a row and with
										 * 'was_retry' */
	int				   nsettling;
	struct lanes_hash *lanes;
	dlist_head		   loading;	  /* lanes whose parked followers are next */
	dlist_head		   parking;	  /* lanes whose followers are to be parked */
	dlist_head		   asking;	  /* lanes that outbox.parked has to be read for */
	bool			   lanes_all; /* true if a key without a lane has nothing parked */
	pairingheap		  *retries;
	struct seqs_hash  *retry_index;		 /* by seq, with the retries that are being
										  * loaded */
	int64			   nretries;		 /* in the heap */
	int64			   nretries_loading; /* off the heap, while their rows are read */
	TimestampTz		   retries_due;		 /* up to which the heap has all that wait
										  * (DT_NOEND: all) ... */
	int64			   retries_seq;		 /* ... and seq, where due times are equal */
	TimestampTz		   met_at;
} OutboxQueue;

/*
 * The endpoint's rows in outbox.parked.  Written by endpoint.c, parked_look.c, parking.c,
 * reader.c and kept_limit.c.
 */
typedef struct OutboxParkedRows
{
	int64 rows[OUTBOX_ROW_STATUSES]; /* as far as they were counted */
	int64 rows_upto;				 /* a seq (PG_INT64_MAX: all were) */
	char *sweep_key;				 /* The sweep for followers that nothing blocks has
									  * examined the keys up to this one.  NULL: all of
									  * them. */
	bool  unblocking;				 /* true if rows may be left that are 'blocked' and in
									  * no lane */
	bool  unblocked;				 /* true if the current step made such rows due */
	int64 sized;					 /* the bytes of rows up to this seq were read */
	int64 given_up;					 /* rows up to this seq are cancelled, or beyond their
									  * tenant's limit, and then have a command */
} OutboxParkedRows;

/*
 * Counters and figures of the endpoint.  Written by batch_outcome.c, outcome.c,
 * publish.c, reload.c and tally.c.
 */
typedef struct OutboxTally
{
	int64			 delivered;
	int64			 failed_attempts;
	TimestampTz		 last_success_at;
	TimestampTz		 last_active_at;
	OutboxHistogram *latency; /* NULL until the first delivery */
	char			*last_error;

	/* The open bucket of figures.  A healthy endpoint's end of it reads no more than this. */
	TimestampTz			   figures_until;	  /* its end (0: none is open) */
	struct OutboxEndpoint *figures_of;		  /* this endpoint */
	dlist_node			   figures_node;	  /* open buckets, by their ends */
	int64				   figures_delivered; /* 'delivered' before it */
	bool figures_failed; /* true if it has other counts: 'figures_base' is set */

	int64  recent_second;
	uint32 recent[60];		  /* deliveries in each of 60 seconds, a ring */
	uint32 recent_failed[60]; /* the same of attempts that failed */

	/*
	 * Counters that never go down (tally.c).  'delivered' is above, and its place in
	 * 'count' is not used.
	 */
	int64	   count[OUTBOX_COUNTERS];
	int64	   shown[OUTBOX_COUNTERS];	   /* no crash can take these back */
	int64	   candidate[OUTBOX_COUNTERS]; /* stored, shown once the WAL is flushed ... */
	XLogRecPtr candidate_lsn;			   /* ... up to here (0: there are none) */
	XLogRecPtr settled_lsn; /* 'count' was stored later, here (0: was not) */
	int64	   figures_base[OUTBOX_FIGURES]; /* 'count' before the bucket */
} OutboxTally;

/* The changes of the endpoint's position and subscription that are to be stored. */
typedef struct OutboxPlace
{
	bool  dirty;	  /* true if a position row has to be written */
	bool  moved;	  /* true if events have left the window since one was written */
	bool  shared;	  /* true if it is idle at the head and follows the shared row */
	bool  was_shared; /* 'shared' as it is stored */
	bool  written;	  /* true if it may go on because of something that the last settle
					   * stored */
	bool  keeps;	  /* true if events of the log that it lacks get rows in
					   * outbox.parked */
	int32 follows;	  /* the shared row that its stored position followed when it was
						   * loaded (0: none) */
	int64 stored_version; /* of the newest subscription that is stored with its place */
	int64 overflowed;	  /* deliveries that outbox.max_backlog_size made dead and that
						   * were not logged yet */
} OutboxPlace;

/*
 * Resources for which endpoints wait in turn, because there is not enough for all at
 * once.
 */
typedef enum OutboxTurn
{
	OUTBOX_TURN_READ,	/* a page of the log, for endpoints that are catching up */
	OUTBOX_TURN_MEMORY, /* memory for a page that begins at their place */
	OUTBOX_TURN_ALONG, /* pages that are read for others: they wait until the others are served */
	OUTBOX_TURN_COUNT, /* a page of the log, to count their backlog */
	OUTBOX_TURN_AHEAD, /* the head: they have read or counted all that may be read */
	OUTBOX_TURN_JUDGE, /* time for their filters */
	OUTBOX_TURN_SHARE, /* a settle that lets them follow the shared position */
	OUTBOX_TURNS
} OutboxTurn;

/*
 * The worker's lists that an endpoint may be on which does not rest.  Written by busy.c,
 * dispatch.c, endpoint.c, publish.c, settle.c and unsettled.c.
 */
typedef struct OutboxLists
{
	struct OutboxEndpoint *endpoint;
	dlist_node			   busy_node; /* of the endpoints that each round examines */
	bool		touched;   /* true if it got something to do since it was last filled */
	dlist_node	open_node; /* of endpoints with something to settle or to publish */
	dlist_node	settle_node;
	dlist_head *settle_list; /* the list of OutboxToSettle that it is on (NULL: none) */
	bool unpublished; /* true if something may have changed since it was published */
	dlist_node turn_node[OUTBOX_TURNS]; /* of endpoints that wait for their turn */
	OutboxFlow flow;					/* waits for a slot, or has some (slots.c) */
	int		   nunsettled;				/* deliveries that have ended (unsettled.c) ... */
	uint64	   unsettled_in;			/* ... if so many settles have left nothing yet */
} OutboxLists;

/* The delivery of the list behind this one, or the first (NULL).  NULL: there is none. */
static inline OutboxDelivery *
outbox_delivery_next(const dlist_head *list, const OutboxDelivery *d)
{
	dlist_node *node = d ? d->node.next : list->head.next;

	return node == NULL || node == &list->head ?
		NULL :
		dlist_container(OutboxDelivery, node, node);
}

/* The endpoint that has this node of a list above. */
#define outbox_listed(field, node) (dlist_container(OutboxLists, field, node)->endpoint)

/*
 * Facts that the worker needs about each of its endpoints.  Written by busy.c, publish.c,
 * reload.c, roster.c, subscribers.c and window.c.
 */
typedef struct OutboxMembership
{
	pairingheap_node waiting_node; /* in the heap of endpoints that wait for a time */
	TimestampTz		 waits_until;  /* 0: it is not in the heap */
	bool   published_quiet;		   /* true if it was quiet at the last outbox_publish() */
	bool   dropped;				   /* true if its settings are gone: it is freed after the
									* commit, or once nothing is in flight */
	bool   recreate;			   /* true if it is to be freed as soon as nothing is in
									* flight, and loaded again unless it was dropped */
	bool   seen;				   /* true if the current reload has found its settings */
	bool   put_off; /* true if its settings have changed and cannot be read: it
									* reads no events until they can */
	uint16 unfit;	/* events in a row that its filter was too long for */
	struct OutboxSubscription *subscription; /* subscribers.c (NULL: it is not known) */
} OutboxMembership;

/*
 * State of an endpoint that has something to do, or had a moment ago.  An endpoint that
 * rests has none, and reads the same place as all others that rest: it is attached to the
 * head, everything is counted and known, nothing is there, and it is on no list.  That
 * place cannot be written.
 */
typedef struct OutboxWork
{
	OutboxFeed		 feed;
	OutboxQueue		 queue;
	OutboxParkedRows table;
	OutboxLists		 lists;
} OutboxWork;

typedef struct OutboxEndpoint
{
	int32				 id;
	MemoryContext		 cxt;	 /* of everything except the settings (NULL: it rests) */
	OutboxTenant		*tenant; /* never changes (NULL: none) */
	OutboxEndpointConfig config;
	OutboxEndpointStatus status;
	OutboxEndpointLink	*link; /* outbox_no_link: it has none, and is up */
	OutboxFeed			*feed; /* these four are in its OutboxWork */
	OutboxQueue			*queue;
	OutboxParkedRows	*table;
	OutboxLists			*lists;
	OutboxTally			*tally;	 /* an endpoint that rests has none a minute later ... */
	struct OutboxCounts *counts; /* ... and keeps its counters other than 0 here
								  * (tally.c) */
	OutboxPace			 pace;
	OutboxPlace			 place;
	OutboxMembership	 member;
	OutboxProof			*proof; /* NULL: it never lacked one */
} OutboxEndpoint;

extern const OutboxEndpointLink outbox_no_link;

#define outbox_is_attached(ep) ((ep)->feed->cursor.read == NULL)
#define outbox_is_counted(ep) ((ep)->feed->counter.read == NULL)
#define outbox_has_all_retries(ep) ((ep)->queue->retries_due == DT_NOEND)
#define outbox_has_all_rows(ep) ((ep)->table->rows_upto == PG_INT64_MAX)

/* Only a sink says by its link whether its receiver works. */
static inline bool
outbox_target_is_webhook(const OutboxTarget *target)
{
	return target->transport && target->transport->headers;
}

/* A webhook has a link if it has credentials. */
static inline bool
outbox_target_has_link(const OutboxTarget *target)
{
	return target->transport && target->transport->open &&
		(target->ncredentials > 0 || !outbox_target_is_webhook(target));
}

/*
 * Events of one endpoint: in the window, and waiting in memory.  With many in flight, or
 * in a batch, more of the events that are read wait for an earlier event.
 */
#define OUTBOX_WINDOW 1024
#define OUTBOX_MAX_WAITING 512
#define outbox_endpoint_waits_full(ep) \
	((ep)->queue->nwaiting >= Max(Max(OUTBOX_MAX_WAITING, (ep)->config.batch_size), \
								  (ep)->pace.limits.max_in_flight / 2))
#define OUTBOX_WINDOW_BYTES (4 * 1024 * 1024) /* of one endpoint */

/*
 * How many due retries, or followers of one lane, are loaded at once:
 * OUTBOX_RETRIES_AT_ONCE, or a full batch if that is more, or one where memory is used up.
 * A group is loaded as a whole, hence OUTBOX_RETRIES_MAX.
 */
#define OUTBOX_RETRIES_AT_ONCE 64
#define OUTBOX_BATCH_SIZE_MAX 1000
#define OUTBOX_RETRIES_MAX (2 * OUTBOX_BATCH_SIZE_MAX)
static inline int
outbox_endpoint_at_once(const OutboxEndpoint *ep)
{
	return outbox_memory_fits(0) ? Max(OUTBOX_RETRIES_AT_ONCE, ep->config.batch_size) : 1;
}

/*
 * The first makes an endpoint without settings and position, in a context below
 * 'parent'.  The second frees one with all of its deliveries.  Nothing may be in
 * flight.
 */
extern OutboxEndpoint *outbox_endpoint_create(MemoryContext parent, int32 id);
extern void			   outbox_endpoint_free(OutboxEndpoint *ep);

/*
 * An endpoint rests when it has had nothing to do for some time.  _may_rest is true if
 * memory has only the endpoint's settings and counts, and nothing is to be stored.
 * outbox_endpoint_wake() must be called before any other field of the endpoint is
 * written, and outbox_busy_add() does.
 */
static inline bool
outbox_endpoint_rests(const OutboxEndpoint *ep)
{
	return ep->cxt == NULL;
}
extern bool outbox_endpoint_may_rest(const OutboxEndpoint *ep);
extern void outbox_endpoint_rest(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_endpoint_wake(OutboxEndpoint *ep);

/* Memory knows that outbox.parked has no rows of the endpoint, which was just made. */
extern void outbox_endpoint_nothing_parked(OutboxEndpoint *ep);

/*
 * outbox_endpoint_load() is outbox_shape_load(), if there is memory for the request, which
 * takes 'request_bytes' besides its payload.  'nothers': the other requests in flight.
 * outbox_endpoint_note_lack() notes that something was used up, which may end at 'at'.
 * outbox_endpoint_lacks() returns that until a second later (NULL: nothing).
 */
extern OutboxEvent *outbox_endpoint_load(OutboxEndpoint *ep, OutboxEvent *event,
										 OutboxFormat format, int nothers,
										 size_t request_bytes, TimestampTz now,
										 bool *gone, const char **problem);
extern void			outbox_endpoint_note_lack(OutboxEndpoint *ep, const char *what,
											  TimestampTz at);
extern const char  *outbox_endpoint_lacks(OutboxEndpoint *ep, TimestampTz now);

/*
 * Puts the next delivery that may be sent now in flight and returns it.  NULL: there is
 * none.  Deliveries that can never be sent become dead on the way.
 */
extern OutboxDelivery *outbox_endpoint_next(OutboxEndpoint *ep, TimestampTz now);

/*
 * The request was not made, or was cancelled: the delivery is ready again, before
 * all others.
 */
extern void outbox_endpoint_put_back(OutboxEndpoint *ep, OutboxDelivery *d);

/*
 * The endpoint is to retain less of the log.  The first function takes away ready
 * deliveries that have no row and a seq up to 'cut', and returns how many.  The second does
 * so with an event that was read for this.  With place.keeps they get rows and wait there,
 * else they are dead.
 */
extern int	outbox_endpoint_overflow_ready(OutboxEndpoint *ep, int64 cut);
extern void outbox_endpoint_overflow(OutboxEndpoint *ep, OutboxEvent *event,
									 OutboxFilterResult filter);

#endif /* OUTBOX_ENDPOINT_H */
