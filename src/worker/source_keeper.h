#ifndef OUTBOX_SOURCE_KEEPER_H
#define OUTBOX_SOURCE_KEEPER_H

#include "base/outbox.h"

/* Reads whether the database follows a source.  Needs a transaction. */
extern void outbox_sources_configure(void);

/* When the next round is due (DT_NOEND: never), and the start of its process. */
extern TimestampTz outbox_sources_next_time(void);
extern void		   outbox_sources_run(void *now);

extern PGDLLEXPORT void outbox_keeper_main(Datum arg);

#endif /* OUTBOX_SOURCE_KEEPER_H */
