/*
 * tap.h
 *	  What the unit tests share: one line of TAP per test, and a plan at the end.
 */
#ifndef OUTBOX_TEST_TAP_H
#define OUTBOX_TEST_TAP_H

#include <stdbool.h>
#include <stdio.h>

static int tests;
static int failures;

/*
 * Prints a test line of 'what' and its subjects.  Characters that would break the
 * line are shown as "?".
 */
static void
ok(bool pass, const char *what, const char *a, const char *b)
{
	tests++;
	if (!pass)
		failures++;
	printf("%sok %d - %s: '", pass ? "" : "not ", tests, what);
	for (; *a; a++)
		putchar(*a < ' ' || *a > '~' ? '?' : *a);
	printf("' '%s'\n", b);
}

/* Prints the plan.  Returns what main() has to return. */
static int
done_testing(void)
{
	printf("1..%d\n", tests);
	return failures > 0;
}

#endif /* OUTBOX_TEST_TAP_H */
