#ifndef OUTBOX_ORIGIN_H
#define OUTBOX_ORIGIN_H

#include "base/outbox.h"

typedef enum OutboxOrigin
{
	OUTBOX_ORIGIN_NONE, /* the log has no origin yet */
	OUTBOX_ORIGIN_OURS,
	OUTBOX_ORIGIN_FOREIGN,		  /* the log of another system or database: a copy */
	OUTBOX_ORIGIN_OTHER_INSTANCE, /* outbox.instance_name is not the stored one */
	OUTBOX_ORIGIN_LOST			  /* rows of outbox.origins are missing */
} OutboxOrigin;

/*
 * Reads outbox.origins.  'epoch' is set to the epoch that new events carry.  'zero' is
 * set to true if events with epoch 0 belong to this log, too.  'thorough': a log without
 * origin and endpoints is searched for events that had an origin, which reads all of it.
 * Needs SPI.
 */
extern OutboxOrigin outbox_origin(int64 *epoch, bool *zero, bool thorough);

/*
 * Makes the log that of this system and database, if it has no origin yet and needs
 * none, and returns what it is then.  Needs SPI.  Throws (40001) if another transaction has
 * done so that this one's snapshot does not see.
 */
extern OutboxOrigin outbox_origin_claim(void);

#endif /* OUTBOX_ORIGIN_H */
