#ifndef OUTBOX_URL_QUERY_H
#define OUTBOX_URL_QUERY_H

#include "format/header_lines.h"
#include "format/profile.h"
#include "log/log.h"

/*
 * Writes the query of the profile.  'event' is NULL for a batch, which has an id only.
 * Returns false if a text of the event has no UTF-8.  '*added' becomes false if memory
 * runs out.
 */
extern bool outbox_url_query_add(OutboxHeaders *out, const OutboxProfile *profile,
								 const char *id, OutboxEvent *event, bool *added);

#endif /* OUTBOX_URL_QUERY_H */
