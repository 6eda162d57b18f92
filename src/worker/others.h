#ifndef OUTBOX_OTHERS_H
#define OUTBOX_OTHERS_H

#include "nodes/pg_list.h"

#include "store/endpoint_settings.h"

extern bool	  outbox_others_have(int32 id);
extern int	  outbox_others_count(void);
extern size_t outbox_others_memory(void); /* bytes */

/*
 * For a reload of all settings, or of some.  _begin begins it.  _note takes a subscription
 * that was read, and _noted says whether it was.  After the commit, _end_all or _end forgets
 * the endpoints, or the ones with these ids, that were not read.  A reload that fails leaves
 * the ones that it has read: the next one is of all.
 */
extern void outbox_others_begin(void);
extern void outbox_others_note(const OutboxEndpointRow *s);
extern bool outbox_others_noted(int32 id);
extern void outbox_others_end_all(void);
extern void outbox_others_end(const List *ids);

#endif /* OUTBOX_OTHERS_H */
