/* The null sink, as built for a version of the contract that there is not. */
#define NULL_ABI 999
#include "outbox_null.c"
