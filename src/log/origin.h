/*
 * origin.h
 *	  Whose log this is.
 */
#ifndef OUTBOX_ORIGIN_H
#define OUTBOX_ORIGIN_H

#include "base/outbox.h"

typedef enum OutboxOrigin
{
	OUTBOX_ORIGIN_NONE, /* nobody has used this log yet */
	OUTBOX_ORIGIN_OURS,
	OUTBOX_ORIGIN_FOREIGN,		 /* another system or database has: a copy */
	OUTBOX_ORIGIN_OTHER_INSTANCE /* outbox.instance_name is not the stored one */
} OutboxOrigin;

/*
 * Asks outbox.origins.  'epoch' is what our events carry; 'zero': those with
 * epoch 0 are ours as well.  Needs SPI.
 */
extern OutboxOrigin outbox_origin(int64 *epoch, bool *zero);

/* Makes the log this system's and database's, if nobody's yet.  Needs SPI. */
extern void outbox_origin_claim(void);

#endif /* OUTBOX_ORIGIN_H */
