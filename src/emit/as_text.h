#ifndef OUTBOX_AS_TEXT_H
#define OUTBOX_AS_TEXT_H

#include "postgres.h"

#include "fmgr.h"

/*
 * Sets the formats.  Returns the level that AtEOXact_GUC() must restore.  An error
 * restores it, too.
 */
extern int outbox_formats_fix(void);

/* False only if values of the type are known to look the same in each session. */
extern bool outbox_type_has_formats(Oid type);

/* How values of a type become text. */
typedef struct OutboxAsText
{
	FmgrInfo output;
	bool	 has_formats;
} OutboxAsText;

extern void	 outbox_as_text_init(OutboxAsText *as, Oid type, MemoryContext cxt);
extern text *outbox_as_text(OutboxAsText *as, Datum value);

#endif /* OUTBOX_AS_TEXT_H */
