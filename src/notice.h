/*
 * notice.h
 *	  Events of our own: outbox.dead, outbox.disabled, outbox.recovered.
 */
#ifndef OUTBOX_NOTICE_H
#define OUTBOX_NOTICE_H

#include "endpoint.h"

/*
 * In a settle, while 'settling' still holds what has died: makes the notices of
 * one endpoint.  'disabled': this settle has written that the endpoint is.
 */
extern void outbox_notice_write(OutboxEndpoint *ep, bool disabled);

/* At its end, in its transaction: writes all notices, or keeps them for later. */
extern void outbox_notice_flush(void);
extern void outbox_notice_committed(void);
extern void outbox_notice_rolled_back(void);

/* True if there are some, and they may be tried. */
extern bool outbox_notice_waits(void);

#endif							/* OUTBOX_NOTICE_H */
