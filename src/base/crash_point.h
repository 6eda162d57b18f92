/*
 * crash_point.h
 *	  Places where a process may be made to die, between two steps that must
 *	  not depend on each other's luck.
 *
 * Nothing in a normal build.  The test of crash points builds a library with
 * OUTBOX_CRASH_POINTS and the file test/shims/crash_point.c, and kills
 * at each place that it finds in the sources: a new one needs no entry
 * anywhere else.
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
 * The same where nothing may be thrown, inside libcurl's callbacks and after a
 * commit: such a process can only be killed.
 */
#define OUTBOX_KILL_POINT(name) OUTBOX_CRASH_POINT(name)

#endif /* OUTBOX_CRASH_POINT_H */
