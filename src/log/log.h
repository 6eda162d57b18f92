#ifndef OUTBOX_LOG_H
#define OUTBOX_LOG_H

#include "base/outbox.h"

#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "log/tick.h"

/* Formats of bodies.  A body is kept with the event once it is made. */
typedef enum OutboxFormat
{
	OUTBOX_FORMAT_STANDARD,
	OUTBOX_FORMAT_RAW,
	OUTBOX_FORMAT_CLOUDEVENTS,
	OUTBOX_FORMAT_CLOUDEVENTS_BINARY,
	OUTBOX_FORMATS
} OutboxFormat;

/* Formats with the same bytes share one body. */
#define OUTBOX_BODY_OF(format) \
	((format) == OUTBOX_FORMAT_CLOUDEVENTS_BINARY ? OUTBOX_FORMAT_RAW : (format))

struct OutboxPage;

/* An id as text, with its terminating NUL, in bytes. */
#define OUTBOX_ID_SIZE 37
extern void outbox_uuid_text(const pg_uuid_t *uuid, char *out);

/* One event, as read.  Strings are NUL-terminated, and NULL if the column is. */
typedef struct OutboxEvent
{
	struct OutboxPage *page;
	int64			   seq;
	pg_uuid_t		   id;
	char			   id_text[OUTBOX_ID_SIZE];
	TimestampTz		   created_at;
	TimestampTz		   expires_at; /* DT_NOEND: never */
	char			  *topic;
	char			  *type; /* NULL: the topic */
	char			  *key;
	char			  *tenant;
	char			  *order_key; /* its key for the order among others (NULL: none) */
	Jsonb			  *headers;

	/*
	 * JSON text, or the bytes if there is a content_type.  NULL: it was left in the log
	 * (payload.h), where it has about payload_len bytes.
	 */
	char  *payload;
	size_t payload_len;
	char  *content_type; /* NULL: payload is JSON */
	/* Its row is damaged: headers and payload are left out. */
	bool unreadable;
	/* outbox.forget() concerns it: key, headers and payload are left out. */
	bool forgotten;
	struct
	{
		char  *data; /* NULL: not rendered yet */
		size_t len;
	} body[OUTBOX_FORMATS];

	/* A copy that was read with its payload, while its page exists; NULL: none. */
	struct OutboxEvent *whole;
} OutboxEvent;

/* The memory that the event takes, about. */
static inline size_t
outbox_event_bytes(const OutboxEvent *event)
{
	return sizeof(OutboxEvent) + (event->payload ? event->payload_len : 0) +
		(event->headers ? VARSIZE(event->headers) : 0);
}

/*
 * Events that were read together, in one memory context.  It is deleted when the page
 * has no more references.
 */
typedef struct OutboxPage
{
	MemoryContext cxt;
	int			  refs;
	size_t		  bytes;   /* its account, see memory.h */
	XLogRecPtr	  lsn;	   /* nothing of it is sent before the WAL is durable here */
	OutboxTick	 *read;	   /* the ticks between which it was read; NULL … */
	OutboxTick	 *reading; /* … for events that were looked up by seq */
	OutboxEvent	 *part;	   /* the event whose 'whole' is in this page; NULL: none */
} OutboxPage;

/*
 * A row of the log, for a filter.  Its payload is unpacked when it is asked for; NULL:
 * it is bytes.
 */
typedef struct OutboxRow OutboxRow;
extern Jsonb			*outbox_row_payload(OutboxRow *row);
extern bool				 outbox_row_unreadable(const OutboxRow *row);
extern bool				 outbox_row_forgotten(const OutboxRow *row);
extern int64			 outbox_row_seq(const OutboxRow *row);
extern bool		   outbox_row_is_covered(const OutboxRow *row, const OutboxCursor *c);
extern const char *outbox_row_tenant(OutboxRow *row, size_t *len);
extern TimestampTz outbox_row_created_at(const OutboxRow *row);

/*
 * Decides whether an event is wanted.  It is called with the topic, before anything
 * else of the row is read.  A result that is not NULL is passed to 'take' with the
 * event.
 */
typedef void *(*OutboxLogFilterFn)(void *arg, const char *topic, size_t len,
								   OutboxRow *row);
typedef void (*OutboxLogVisitFn)(void *arg, void *wanted, OutboxEvent *event);

typedef struct OutboxLogQuery
{
	OutboxLogFilterFn want;
	OutboxLogVisitFn  take;
	void			 *arg;
	int				  max_rows;
	size_t			  max_bytes; /* of payloads; at least one event is read */
	const char		 *tenant;	 /* only its events are read; NULL: all events */
} OutboxLogQuery;

/*
 * A page also ends when it has taken this time (µs).  At least one event is examined.  An
 * event that is emitted meanwhile waits for several of them.
 */
#define OUTBOX_PAGE_TIME (2 * 1000)

/* Called when a worker starts, with the oid of outbox.events_seq. */
extern void outbox_log_init(Oid sequence);

/* Throws if the numbers of the sequence would not be in the order of the log. */
extern void outbox_log_check_sequence(void);

/*
 * Reads on from a cursor, at most to the end of the tick that is being read.  If there
 * is none, that is 'target' (a later tick).  Advances the cursor.  Returns the number
 * of rows examined.  Raises '*lsn' to where the WAL must be durable before anything
 * that was read may be sent.
 */
extern int outbox_log_read(OutboxCursor *cursor, OutboxTick *target,
						   const OutboxLogQuery *reader, XLogRecPtr *lsn);

/*
 * Passes the events of this log that have these numbers to 'take', from the log or
 * from outbox.kept_events.  Events that do not exist any more are left out.  Returns the
 * page of these events, to which the caller has a reference.
 */
extern OutboxPage *outbox_fetch(const int64 *seqs, int n, OutboxLogVisitFn take,
								void *arg);

/*
 * The same event with its payload, in a page of its own.  NULL if it does not exist
 * any more.
 */
extern OutboxEvent *outbox_fetch_whole(const OutboxEvent *event);

/*
 * Raised by each fetch, and when events are read to be kept, to where the WAL must be
 * durable before sending.  The worker waits for it.
 */
extern XLogRecPtr outbox_fetched_lsn;

/* Drops a reference to the page.  The last one frees it. */
extern void outbox_page_unref(OutboxPage *page);

/*
 * Updates the page's account.  To be called after something in the page was allocated
 * or freed.
 */
extern void outbox_page_account(OutboxPage *page);

#endif /* OUTBOX_LOG_H */
