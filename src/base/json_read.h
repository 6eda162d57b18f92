/*
 * json_read.h
 *	  Reads JSON of a stranger.  Pure: it depends on its arguments alone, and is tested
 *	  without a server.
 */
#ifndef OUTBOX_JSON_READ_H
#define OUTBOX_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>

#define OUTBOX_JSON_DEPTH 520 /* a payload has 512 at most, and a format adds to it */
/* bytes of a name and of a value that are kept, with the zero behind */
#define OUTBOX_JSON_NAME 256
#define OUTBOX_JSON_VALUE (16 * 1024)

typedef enum OutboxJsonKind
{
	OUTBOX_JSON_BEGIN_OBJECT,
	OUTBOX_JSON_END_OBJECT,
	OUTBOX_JSON_BEGIN_ARRAY,
	OUTBOX_JSON_END_ARRAY,
	OUTBOX_JSON_STRING,
	OUTBOX_JSON_NUMBER,
	OUTBOX_JSON_WORD /* true, false or null */
} OutboxJsonKind;

typedef struct OutboxJsonItem
{
	OutboxJsonKind kind;
	int			   depth; /* of how many objects and arrays it is in */
	const char	  *name;  /* in its object; "": it is in none, or ends one */
	const char	  *value; /* a number and a word as written; "": an object or array */
	bool		   cut;	  /* true if the value was longer */
} OutboxJsonItem;

typedef void (*OutboxJsonTake)(void *arg, const OutboxJsonItem *item);

/*
 * Calls 'take' for each item, in their order.  NULL: for none.  Returns false if it is no
 * JSON, or has more than OUTBOX_JSON_DEPTH levels.  Allocates nothing, does not throw.
 */
extern bool outbox_json_read(const char *data, size_t len, OutboxJsonTake take,
							 void *arg);

#endif /* OUTBOX_JSON_READ_H */
