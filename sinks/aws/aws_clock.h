/*
 * aws_clock.h
 *	  The clock that never goes back.
 */
#ifndef OUTBOX_AWS_CLOCK_H
#define OUTBOX_AWS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t
aws_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif /* OUTBOX_AWS_CLOCK_H */
