#ifndef OUTBOX_STANDBYS_H
#define OUTBOX_STANDBYS_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "utils/guc.h"

/* True if an event must be on a standby before it is sent. */
extern bool outbox_standbys_required(void);

/*
 * How far the WAL is on disk of the required standbys.  Invalid: too few of them are
 * streaming, or synchronous replication has not begun.
 */
extern XLogRecPtr outbox_standbys_lsn(void);

/*
 * True if fewer standbys than outbox.wait_for_standbys requires were streaming when
 * outbox_standbys_lsn() was last called.
 */
extern bool outbox_standbys_missing(void);

/* Writes that as a reason for outbox.status. */
extern void outbox_standbys_explain(char *reason, size_t size);

/* Hooks of the setting. */
extern bool outbox_standbys_check(char **newval, void **extra, GucSource source);
extern void outbox_standbys_assign(const char *newval, void *extra);

#endif /* OUTBOX_STANDBYS_H */
