/*
 * event_types.h
 *	  Which topics the catalogue lists.
 */
#ifndef OUTBOX_EVENT_TYPES_H
#define OUTBOX_EVENT_TYPES_H

#include "base/outbox.h"

/*
 * True if outbox.event_types lists the topic, for this transaction at this moment.
 * Needs a transaction.  'topic' has at most OUTBOX_MAX_TOPIC bytes.
 */
extern bool outbox_event_type_listed(const char *topic, size_t len);

#endif /* OUTBOX_EVENT_TYPES_H */
