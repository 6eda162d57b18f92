/*
 * endpoint.h
 *	  One endpoint in the worker: its window on the log, slots, key lanes,
 *	  retries, backoff and breaker.  Knows neither SQL nor HTTP.
 */
#ifndef OUTBOX_ENDPOINT_H
#define OUTBOX_ENDPOINT_H

#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "endpoint/filter.h"
#include "endpoint/pace.h"
#include "format/request.h"
#include "log/log.h"
#include "server/shmem.h"
#include "transport/transport.h"

struct OutboxBatch;
struct OutboxEndpoint;
struct OutboxLane;

/*
 * A delivery is on exactly one list, and the list is its state.  What ended
 * well and has no row in outbox.parked is on none: it is gone.
 */
typedef enum OutboxDeliveryState
{
	OUTBOX_DELIVERY_READY, /* may be sent as soon as there is a slot */
	OUTBOX_DELIVERY_IN_FLIGHT,
	OUTBOX_DELIVERY_WAITING, /* behind its key's head */
	OUTBOX_DELIVERY_SETTLING /* its row in outbox.parked has to change */
} OutboxDeliveryState;

/* What becomes of a row of outbox.parked at the next settle. */
typedef enum OutboxRowChange
{
	OUTBOX_VERDICT_NONE,
	OUTBOX_VERDICT_DELIVERED, /* the row, if there is one, goes */
	OUTBOX_VERDICT_RETRY,	  /* 'retrying', due at next_attempt_at */
	OUTBOX_VERDICT_BLOCKED,	  /* 'blocked' behind its key's head */
	OUTBOX_VERDICT_DEAD		  /* 'dead', for 'reason' */
} OutboxRowChange;

typedef struct OutboxDelivery
{
	dlist_node			   node;
	dlist_node			   held_node; /* while it has no row: the position names it */
	bool				   held;
	OutboxDeliveryState	   state;
	OutboxRowChange		   verdict;
	struct OutboxEndpoint *endpoint;
	struct OutboxLane	  *lane;  /* NULL: unordered */
	struct OutboxBatch	  *batch; /* that it is in flight with; NULL: alone */
	int64				   group; /* is tried again with others of the same
								 * number, and nobody else; 0: with anybody */
	OutboxEvent			  *event;
	OutboxEvent			  *sent;	 /* what its request is made of; NULL: it has none */
	size_t				   sent_len; /* bytes of its body */
	int64				   seq;
	bool				   parked;		/* has a row in outbox.parked … */
	bool				   was_retry;	/* … which says 'retrying', not 'blocked' */
	bool				   row_retries; /* it said so when it was read */
	bool				   probe;		/* sent while the breaker was open */
	OutboxRedelivery	   redelivery;
	int					   attempts;		 /* made, the one in flight not included */
	TimestampTz			   first_attempt_at; /* 0: none was made */
	TimestampTz			   started_at;
	TimestampTz			   next_attempt_at;
	OutboxTransfer		  *transfer;
	int					   last_status;
	const char			  *reason; /* static; of 'dead' */
	char				  *error;  /* palloc'd in the worker's context, or NULL */
} OutboxDelivery;

/* The deliveries of one key, in the order of the log. */
typedef struct OutboxLane
{
	char		   *key;
	OutboxDelivery *head;		  /* ready or in flight; NULL: none */
	int				blockers;	  /* failed heads: on their way to outbox.parked,
								 * or known there by seq and time */
	bool			asked;		  /* the following two are what the table says */
	bool			retrying;	  /* other heads wait there for their time … */
	bool			dead;		  /* … or are dead and block the key */
	bool			parked;		  /* there may be followers in outbox.parked, or
								 * on the way */
	int64			first_parked; /* none of them has a lower seq */
	int				nwaiting;
	dlist_head		waiting;	/* followers in memory, by seq */
	bool			on_loading; /* parked followers are to be loaded */
	bool			on_parking; /* waiting ones are to be parked */
	bool			on_asking;	/* the table has to be asked about it */
	dlist_node		loading_node;
	dlist_node		parking_node;
	dlist_node		asking_node;
	int64			failed_with; /* while an answer to a batch is worked through:
								 * the group of the lane's first failure; 0: none */
} OutboxLane;

/* A parked delivery that waits for its time. */
typedef struct OutboxRetry
{
	pairingheap_node node;
	TimestampTz		 due;
	int64			 seq;
	int64			 group;	  /* comes back with others of that number */
	OutboxLane		*lane;	  /* that it blocks; NULL: none */
	bool			 loading; /* due: off the heap, its row is being read */
} OutboxRetry;

typedef enum OutboxOrdering
{
	OUTBOX_ORDER_KEY,
	OUTBOX_ORDER_NONE,
	OUTBOX_ORDER_STRICT
} OutboxOrdering;

/* Latencies of the last five minutes, in logarithmic buckets. */
#define OUTBOX_HISTOGRAM_BUCKETS 128
#define OUTBOX_HISTOGRAM_MINUTES 5

typedef struct OutboxHistogram
{
	int64  minute[OUTBOX_HISTOGRAM_MINUTES]; /* which one a row counts */
	uint32 count[OUTBOX_HISTOGRAM_MINUTES][OUTBOX_HISTOGRAM_BUCKETS];
} OutboxHistogram;

/* How a row of outbox.parked that counts can be. */
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
	bool			   cancelled; /* it will not be sent */
	OutboxFilterResult filter;	  /* as of its payload */
} OutboxWindowEntry;

/* Its settings, as outbox.endpoint_settings has them.  Written by endpoint_settings.c. */
typedef struct OutboxEndpointConfig
{
	char			   *name;		  /* in settings_cxt, too */
	MemoryContext		settings_cxt; /* of patterns, target and request */
	MemoryContext		retired_cxt;  /* former ones, until they are freed */
	int					npatterns;
	char			  **patterns;
	JsonPath		   *filter;		  /* NULL: none */
	uint64				row_version;  /* of the settings as stored */
	uint64				keys_version; /* of the key file that they were opened with */
	int64				version;	  /* of the subscription */
	int64				generation;	  /* of the position: raised by seek */
	OutboxTarget		target;
	OutboxRequestConfig request;
	OutboxOrdering		ordering;
	bool				block_on_dead;
	int					max_attempts;	/* 0: no limit */
	int64				max_age;		/* µs from the first attempt */
	int					batch_size;		/* 1: no batches */
	int64				batch_wait;		/* µs */
	TimestampTz			previous_until; /* when a rotation ends; DT_NOEND: none */
} OutboxEndpointConfig;

/* Whether it is sent to at all, and why not. */
typedef struct OutboxEndpointStatus
{
	bool		paused;
	bool		disabled;
	const char *held_for; /* why its secrets cannot be used; NULL: they can */
	TimestampTz state_since;
	char		reason[128];
	bool		state_dirty;   /* disabled by its receiver: to be written */
	bool		state_written; /* by the settle that is under way */
	bool		recovered;	   /* its breaker has closed: to be told */
	bool		unstorable;	   /* its last settle failed: nothing is sent before
								 * one succeeds */
} OutboxEndpointStatus;

/* Where it reads, and what it has read.  Written by window.c and reader.c. */
typedef struct OutboxFeed
{
	bool			   attached; /* reads with the head of the log; else 'cursor' */
	OutboxCursor	   cursor;
	OutboxCursor	   frontier;	  /* everything up to here is done, parked, or
								 * one of 'ready', 'in_flight', 'waiting' */
	bool			   counted;		  /* 'matched' goes up to the head of the log */
	OutboxCursor	   counter;		  /* else up to here */
	int64			   backlog;		  /* matched beyond the frontier, as counted; the
								 * window is part of it, what will not be sent
								 * is not */
	TimestampTz		   backlog_since; /* no event of it that is beyond the window was
								 * emitted before; counted events only */
	OutboxWindowEntry *window;		  /* read, not yet examined: a ring … */
	int				   window_size;	  /* … of so many places */
	int				   window_start;
	int				   window_count;
	size_t			   window_bytes;   /* outbox_event_bytes() of them */
	int				   ncancelled;	   /* of the window, those that will not be sent */
	int				   window_known;   /* so many at its front: what outbox.parked has of
								 * their keys is in memory */
	int64			   cancelled_upto; /* no event was cancelled that has a higher seq */
	bool			   drop_window;	   /* re-read from the frontier */
} OutboxFeed;

/* Its deliveries, by what they wait for.  Written by queue.c, lane.c, retries.c. */
typedef struct OutboxQueue
{
	dlist_head	ready;
	dlist_head	in_flight;
	dlist_head	settling;
	dlist_head	held; /* all of the first three that have no row */
	int			nheld;
	int			nready;
	int			nin_flight;		 /* requests: a batch is one */
	size_t		flight_bytes;	 /* that they take */
	TimestampTz memory_short_at; /* when memory last held it back; 0: never */
	int			nheads;			 /* deliveries in flight that nobody of their lane
								 * precedes */
	int			nwaiting;
	int			nretries_waiting; /* of them, those whose row says 'retrying' */
	int			nloaded_blocked;  /* ready or waiting, with a row that says so … */
	int			nloaded_retries;  /* … and with one that says 'retrying' */
	int			nsettling;
	struct lanes_hash *lanes;
	dlist_head		   loading;	  /* lanes whose parked followers are next */
	dlist_head		   parking;	  /* lanes whose followers are to be parked */
	dlist_head		   asking;	  /* lanes that the table has to be asked about */
	bool			   lanes_all; /* a key without a lane has nothing parked */
	pairingheap		  *retries;
	struct seqs_hash  *retry_index;		 /* the same, by seq */
	int64			   nretries;		 /* in the heap */
	int64			   nretries_loading; /* due, being read back */
	bool			   retries_all; /* the heap has all that wait; else those up to */
	TimestampTz		   retries_due; /* this time and, where times are equal, … */
	int64			   retries_seq; /* … this seq */
	TimestampTz		   met_at;
} OutboxQueue;

/* What it has in outbox.parked, as far as counted.  Written by parked_look.c, parking.c. */
typedef struct OutboxParkedRows
{
	int64 rows[OUTBOX_ROW_STATUSES]; /* as counted … */
	bool  rows_counted;				 /* … all of them; else those up to */
	int64 rows_upto;				 /* this seq */
	char *sweep_key;				 /* up to here keys were looked at for followers
								 * that nothing blocks; NULL: all were */
	bool  unblocking;				 /* what is blocked in no lane becomes due */
	bool  unblocked;				 /* the same, by the step that is under way */
} OutboxParkedRows;

/* What outbox.stats counts.  Written by tally.c and outcome.c. */
typedef struct OutboxTally
{
	int64			 delivered;
	int64			 failed_attempts;
	TimestampTz		 last_success_at;
	TimestampTz		 last_active_at;
	uint32			 recent[60]; /* deliveries per second, a ring */
	int64			 recent_second;
	OutboxHistogram *latency; /* NULL until the first delivery */
	char			*last_error;
} OutboxTally;

/* What of its position is to be stored.  Written by settle.c and positions.c. */
typedef struct OutboxPlace
{
	bool  dirty;		  /* a position row is due */
	bool  shared;		  /* idle at the head: follows the shared row */
	bool  was_shared;	  /* the same before the settle that is under way */
	int64 stored_version; /* whose place in the log is stored */
	int64 overflowed;	  /* dead for outbox.max_backlog_size, not told
								 * yet */
} OutboxPlace;

/* Its place among the endpoints of the worker.  Written by roster.c and publish.c. */
typedef struct OutboxMembership
{
	dlist_node busy_node; /* on the worker's list of endpoints that are
								 * not idle */
	bool	   busy;
	bool	   published_quiet; /* outbox.stats says that it is done */
	bool	   dropped;			/* ends as soon as nothing is in flight */
	bool	   recreate;		/* to be read anew from its tables, as soon as
								 * nothing is in flight */
	bool	   seen;			/* while settings are read */
} OutboxMembership;

typedef struct OutboxEndpoint
{
	int32				 id;
	MemoryContext		 cxt; /* of everything but the settings */
	OutboxEndpointConfig config;
	OutboxEndpointStatus status;
	OutboxFeed			 feed;
	OutboxQueue			 queue;
	OutboxParkedRows	 table;
	OutboxPace			 pace;
	OutboxTally			 tally;
	OutboxPlace			 place;
	OutboxMembership	 member;
} OutboxEndpoint;

/* Read-ahead of one endpoint, and followers kept in memory: events. */
#define OUTBOX_WINDOW 1024
#define OUTBOX_MAX_WAITING 512
#define OUTBOX_WINDOW_BYTES (4 * 1024 * 1024) /* one endpoint */

/*
 * Due retries that are brought back together, and followers of one lane: so
 * many, or what fills a batch.  A group is not torn apart.
 */
#define OUTBOX_RETRIES_AT_ONCE 64
#define OUTBOX_BATCH_SIZE_MAX 1000
#define OUTBOX_RETRIES_MAX (2 * OUTBOX_BATCH_SIZE_MAX)
#define outbox_endpoint_at_once(ep) Max(OUTBOX_RETRIES_AT_ONCE, (ep)->config.batch_size)

extern OutboxEndpoint *outbox_endpoint_create(MemoryContext parent, int32 id);
extern void			   outbox_endpoint_free(OutboxEndpoint *ep);

/*
 * True if a request that takes so many more bytes may be sent: they are within the
 * memory of the worker, or nothing else of the endpoint's is in flight, nor about
 * to be settled, which holds memory as well.
 */
extern bool outbox_endpoint_has_memory(OutboxEndpoint *ep, int nothers, size_t bytes,
									   TimestampTz now);
extern bool outbox_endpoint_lacks_memory(OutboxEndpoint *ep, TimestampTz now);

/* The next delivery to send now, taken in flight; NULL: none. */
extern OutboxDelivery *outbox_endpoint_next(OutboxEndpoint *ep, TimestampTz now);

/* Not sent, or cancelled: it is ready again, as if it had not been taken. */
extern void outbox_endpoint_put_back(OutboxEndpoint *ep, OutboxDelivery *d);

/*
 * The backlog is too large: what is ready and has no row, up to 'cut', and an
 * event that was read for this are dead.  The first returns how many.
 */
extern int	outbox_endpoint_overflow_ready(OutboxEndpoint *ep, int64 cut);
extern void outbox_endpoint_overflow(OutboxEndpoint *ep, OutboxEvent *event);

#endif /* OUTBOX_ENDPOINT_H */
