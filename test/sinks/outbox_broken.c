/* The null sink, but its init throws an error. */
#define NULL_FAILS
#include "outbox_null.c"
