/*
 * crash_point.h
 *	  Places where a test can end a process, between two steps that must stay correct
 *	  without each other.
 *
 * A normal build has none.  The test of crash points builds a library with
 * OUTBOX_CRASH_POINTS and the file test/shims/crash_point.c.  It kills the process at
 * each place that it finds in the sources, so a new place needs no entry elsewhere.
 */
#ifndef OUTBOX_CRASH_POINT_H
#define OUTBOX_CRASH_POINT_H

#ifdef OUTBOX_CRASH_POINTS
extern void outbox_crash_point(const char *name);
#define OUTBOX_CRASH_POINT(name) outbox_crash_point(name)
#else
#define OUTBOX_CRASH_POINT(name) ((void) 0)
#endif

/*
 * For code that must not throw: libcurl's callbacks, sinks, and code that runs after a
 * commit.  There, a process can only be killed.
 */
#define OUTBOX_KILL_POINT(name) OUTBOX_CRASH_POINT(name)

#endif /* OUTBOX_CRASH_POINT_H */
