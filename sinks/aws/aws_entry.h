#ifndef OUTBOX_AWS_ENTRY_H
#define OUTBOX_AWS_ENTRY_H

#include "aws_target.h"
#include "aws_text.h"
#include "transport/transport.h"

/*
 * Appends the entry.  '*bytes' is its size as the service counts.  'source' is
 * EventBridge's.  Returns why the service can never take the event, static text.  NULL: it
 * may.  The text may have failed for a lack of memory.
 */
extern const char *aws_entry_write(const AwsTarget *t, const char *source,
								   const OutboxMessage *m, AwsText *out, size_t *bytes);

/* The body of a request, from its entries.  'i' counts them from 0. */
extern void aws_body_begin(const AwsTarget *t, AwsText *body);
extern void aws_body_add(const AwsTarget *t, AwsText *body, int i, const AwsText *entry);
extern void aws_body_end(const AwsTarget *t, AwsText *body);

#endif /* OUTBOX_AWS_ENTRY_H */
