/*
 * clock.h
 *	  What happens when the wall clock is set back.
 */
#ifndef OUTBOX_CLOCK_H
#define OUTBOX_CLOCK_H

#include "datatype/timestamp.h"

/* By more than a second, since the last call?  True until the process ends. */
extern bool outbox_clock_went_back(TimestampTz now);

/* Brings the times that are stored to the new clock. */
extern void outbox_clock_follow(TimestampTz now);

#endif /* OUTBOX_CLOCK_H */
