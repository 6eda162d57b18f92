/*
 * string_hash.h
 *	  A hash table whose keys are strings, made of PostgreSQL's simplehash.
 *
 * Include it once per table, after the definitions of SH_PREFIX, SH_ELEMENT_TYPE and
 * SH_KEY.  An element also has the fields hash and status.
 */
#define SH_KEY_TYPE const char *
#define SH_HASH_KEY(tb, k) hash_bytes((const unsigned char *) (k), strlen(k))
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) (a)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"
