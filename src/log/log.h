/*
 * log.h
 *	  Reading the log: events, and the pages that they are in.
 */
#ifndef OUTBOX_LOG_H
#define OUTBOX_LOG_H

#include "base/outbox.h"

#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "log/tick.h"

/* Formats that bodies come in; kept with the event once rendered. */
typedef enum OutboxFormat
{
	OUTBOX_FORMAT_STANDARD,
	OUTBOX_FORMAT_RAW,
	OUTBOX_FORMAT_CLOUDEVENTS,
	OUTBOX_FORMAT_CLOUDEVENTS_BINARY,
	OUTBOX_FORMATS
} OutboxFormat;

/* The same bytes: they are kept once. */
#define OUTBOX_BODY_OF(format) \
	((format) == OUTBOX_FORMAT_CLOUDEVENTS_BINARY ? OUTBOX_FORMAT_RAW : (format))

struct OutboxPage;

/* An id as text, with its end. */
#define OUTBOX_ID_SIZE 37
extern void outbox_uuid_text(const pg_uuid_t *uuid, char *out);

/* One event, as read.  Strings are NUL-terminated; NULL where the column is. */
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
	uint32			   key_hash;
	Jsonb			  *headers;
	char			  *payload;		 /* JSON text, or the bytes when content_type;
								 * NULL: it was left in the log (payload.h) … */
	size_t			   payload_len;	 /* … where it has about so many bytes */
	char			  *content_type; /* NULL: payload is JSON */
	bool			   unreadable;	 /* its row is damaged: headers and payload are
								 * left out */
	struct
	{
		char  *data; /* NULL: not rendered yet */
		size_t len;
	} body[OUTBOX_FORMATS];
	struct OutboxEvent *whole; /* a copy that was read with its payload, as
								 * long as its page is there; NULL: none */
} OutboxEvent;

/* What it takes in memory; about. */
static inline size_t
outbox_event_bytes(const OutboxEvent *event)
{
	return sizeof(OutboxEvent) + (event->payload ? event->payload_len : 0) +
		(event->headers ? VARSIZE(event->headers) : 0);
}

/*
 * Events read together, in one memory context that goes when nobody refers to
 * the page any more.
 */
typedef struct OutboxPage
{
	MemoryContext cxt;
	int			  refs;
	size_t		  bytes; /* its account, see memory.h */
	XLogRecPtr	  lsn;	 /* nothing of it is sent before the WAL is
								 * durable up to here */
	OutboxTick	 *done;	 /* the ticks it was read between; NULL for */
	OutboxTick	 *under; /* events that were looked up by seq */
	OutboxEvent	 *part;	 /* whose 'whole' is in this page; NULL: none */
} OutboxPage;

/*
 * Is this event wanted?  Asked with the topic alone, before anything else of
 * the row is looked at; its payload can be asked for (NULL: it is bytes).  A
 * non-NULL answer is handed to 'take' with the event.
 */
typedef struct OutboxRow OutboxRow;
extern Jsonb			*outbox_row_payload(OutboxRow *row);
extern bool				 outbox_row_unreadable(const OutboxRow *row);
extern int64			 outbox_row_seq(const OutboxRow *row);
extern TimestampTz		 outbox_row_created_at(const OutboxRow *row);

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
} OutboxLogQuery;

/*
 * A page ends after this time (µs), too, when filters take it: at least one
 * event is judged.
 */
#define OUTBOX_PAGE_TIME (10 * 1000)

extern void outbox_log_init(Oid sequence);

/* An error if the numbers of the sequence would not be in the order of the log. */
extern void outbox_log_check_sequence(void);

/*
 * Reads on from a cursor, at most to the end of 'target' (a later tick), which
 * becomes the tick under way if there is none.  Advances the cursor; returns
 * the number of rows looked at.  '*lsn' is raised to where the WAL has to be
 * durable before any of what was read may be sent.
 */
extern int outbox_log_read(OutboxCursor *cursor, OutboxTick *target,
						   const OutboxLogQuery *reader, XLogRecPtr *lsn);

/*
 * Events of this log by seq, wherever they are kept; those that are gone are not
 * taken.
 */
extern void outbox_fetch(const int64 *seqs, int n, OutboxLogVisitFn take, void *arg);

/* The same event with its payload, in a page of its own; NULL: it is gone. */
extern OutboxEvent *outbox_fetch_whole(const OutboxEvent *event);

/* Raised by whatever was fetched; the worker waits for it. */
extern XLogRecPtr outbox_fetched_lsn;

extern void outbox_page_unref(OutboxPage *page);

/* After something was allocated in the page, or freed. */
extern void outbox_page_account(OutboxPage *page);

#endif /* OUTBOX_LOG_H */
