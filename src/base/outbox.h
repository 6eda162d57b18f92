/*
 * outbox.h
 *	  What every folder may know: names and limits.
 *
 * Nothing here has behaviour.  The header of each file says what that offers.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "datatype/timestamp.h"

#define OUTBOX_VERSION "1.0"
#define OUTBOX_SCHEMA "outbox"
#define OUTBOX_EXTENSION "outbox"

/* Limits that the documents state. All in bytes. */
#define OUTBOX_MAX_TOPIC 255
#define OUTBOX_MAX_TYPE 255
#define OUTBOX_MAX_KEY 1024
#define OUTBOX_MAX_DEDUP_KEY 1024
#define OUTBOX_MAX_HEADERS 8192 /* names and values of one event together */

/*
 * Some receivers read 100 lines of header and the empty line among them (Python's
 * http.server).  Ours are 15, those of cloudevents-binary 23, and there an event's
 * are sent twice: 23 + 2 * 30 + 15 = 98.
 */
#define OUTBOX_MAX_EVENT_HEADERS 30
#define OUTBOX_MAX_ENDPOINT_HEADERS 15
#define OUTBOX_MAX_NESTING 512 /* objects and arrays of a payload in one another */

/* The log is a fixed set of tables, used in turn; see retention.c. */
#define OUTBOX_LOG_PIECES 3

#endif /* OUTBOX_H */
