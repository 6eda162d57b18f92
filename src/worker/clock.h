#ifndef OUTBOX_CLOCK_H
#define OUTBOX_CLOCK_H

#include "datatype/timestamp.h"

/*
 * True if the clock was set back by more than a second since the last call.  Then
 * the process has to end.  Notes it when the clock was set forward, so it is called
 * before 'now' is compared with an earlier time.
 */
extern bool outbox_clock_went_back(TimestampTz now);

/*
 * Changes the stored times of retries to the new clock.  If a lock is not free,
 * does nothing.
 */
extern void outbox_clock_follow(TimestampTz now);

#endif /* OUTBOX_CLOCK_H */
