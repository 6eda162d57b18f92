/*
 * aws_json.h
 *	  Reads JSON, as a pure function.
 */
#ifndef OUTBOX_AWS_JSON_H
#define OUTBOX_AWS_JSON_H

#include <stdbool.h>
#include <stddef.h>

#define AWS_JSON_DEPTH 32
/* bytes of a name and of a value that are kept, with the zero behind */
#define AWS_JSON_NAME 256
#define AWS_JSON_VALUE 8192

typedef enum AwsJsonKind
{
	AWS_JSON_BEGIN_OBJECT,
	AWS_JSON_END_OBJECT,
	AWS_JSON_BEGIN_ARRAY,
	AWS_JSON_END_ARRAY,
	AWS_JSON_STRING,
	AWS_JSON_OTHER /* a number, true, false or null, as written */
} AwsJsonKind;

/*
 * 'depth' is how many objects and arrays the item is in.  'name' is its name in its
 * object, and "" for others.  'value' is "" for objects and arrays.
 */
typedef void (*AwsJsonItem)(void *arg, int depth, const char *name, AwsJsonKind kind,
							const char *value);

/*
 * Calls 'item' for each item, in their order.  NULL: for none.  Returns false if it is no
 * JSON, or has more than AWS_JSON_DEPTH levels.
 */
extern bool aws_json_read(const char *data, size_t len, AwsJsonItem item, void *arg);

#endif /* OUTBOX_AWS_JSON_H */
