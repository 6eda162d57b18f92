/*
 * notice.h
 *	  Events of our own: outbox.dead, outbox.disabled, outbox.recovered.
 */
#ifndef OUTBOX_NOTICE_H
#define OUTBOX_NOTICE_H

#include "endpoint.h"

/* Will the next settle tell anything? */
extern bool outbox_notice_wanted(dlist_head *busy);

/*
 * In a settle, while 'settling' still holds what has died.  'disabled': this
 * settle has written that the endpoint is.
 */
extern void outbox_notice_write(OutboxEndpoint *ep, bool disabled);

#endif							/* OUTBOX_NOTICE_H */
