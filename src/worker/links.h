#ifndef OUTBOX_LINKS_H
#define OUTBOX_LINKS_H

#include "endpoint/endpoint.h"

/* Opens the links that have to be opened, and notes which are up. */
extern void outbox_links_step(TimestampTz now);

/* The endpoint has other settings: it may be the first one that has a link. */
extern void outbox_links_note(const OutboxEndpoint *ep);

/* The settings of the server were read: files of credentials are read again. */
extern void outbox_links_reload(void);

/* The endpoint is about to be freed.  Nothing of it is in flight. */
extern void outbox_link_close(OutboxEndpoint *ep);

#endif /* OUTBOX_LINKS_H */
