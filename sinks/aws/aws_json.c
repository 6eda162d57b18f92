/*
 * aws_json.c
 *	  outbox's own reader of JSON (json_read.c), compiled into this library.
 */
#include "base/json_read.c"
