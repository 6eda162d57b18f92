#ifndef OUTBOX_OTHERS_H
#define OUTBOX_OTHERS_H

#include "nodes/pg_list.h"

#include "store/endpoint_settings.h"

extern bool	  outbox_others_have(int32 id);
extern int	  outbox_others_count(void);
extern size_t outbox_others_memory(void); /* bytes */

/*
 * For a reload of all settings, or of some.  _begin begins it in its transaction.  _note
 * adds a subscription that was read, and _noted says whether it was.  _keep is called
 * before the commit, and one of the last three after it.
 */
extern void outbox_others_begin(bool all);
extern void outbox_others_note(const OutboxEndpointRow *s);
extern bool outbox_others_noted(int32 id);
extern void outbox_others_keep(void);

/*
 * _take_all replaces all subscriptions by the noted ones.  _take does so for the
 * endpoints with these ids.  _failed drops the notes.
 */
extern void outbox_others_take_all(void);
extern void outbox_others_take(const List *ids);
extern void outbox_others_failed(void);

#endif /* OUTBOX_OTHERS_H */
