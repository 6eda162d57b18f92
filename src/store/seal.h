#ifndef OUTBOX_SEAL_H
#define OUTBOX_SEAL_H

#include "base/outbox.h"

#define OUTBOX_SEALED "sealed:1:"
#define OUTBOX_SEAL_KEYS 16	   /* in one file at most */
#define OUTBOX_SEAL_KEY_LEN 32 /* bytes */
#define OUTBOX_SEAL_ID_LEN 16  /* hexadecimal digits */

/*
 * The fields that are sealed.  A header's and a credential's field is followed by a
 * name.
 */
#define OUTBOX_FIELD_URL "url"
#define OUTBOX_FIELD_SECRET "secret"
#define OUTBOX_FIELD_PREVIOUS "previous"
#define OUTBOX_FIELD_HEADER "header:"
#define OUTBOX_FIELD_CREDENTIAL "credential:"

typedef struct OutboxSealKey
{
	char  id[OUTBOX_SEAL_ID_LEN + 1];
	uint8 bytes[OUTBOX_SEAL_KEY_LEN];
} OutboxSealKey;

typedef struct OutboxKeyring
{
	bool		  wanted;	   /* true if outbox.secret_key_file is set */
	char		  problem[96]; /* why the file cannot be used ("": it can) */
	int			  nkeys;	   /* the first one seals, all of them open */
	OutboxSealKey keys[OUTBOX_SEAL_KEYS];
} OutboxKeyring;

/*
 * Reads the key file.  A file that cannot be used is noted in ring->problem.
 * The caller wipes the ring as soon as it can.
 */
extern void outbox_keyring_load(OutboxKeyring *ring);
extern void outbox_keyring_wipe(OutboxKeyring *ring);

/*
 * Returns a number that changes when the keys or the problem change.  0: no file is
 * set.
 */
extern uint64 outbox_keyring_version(const OutboxKeyring *ring);

/*
 * Returns why the path cannot be that of the key file, or of other secrets of the server,
 * in words.  NULL: it can.
 */
extern const char *outbox_private_path_problem(const char *path);

/* True if the value of the field is sealed, or looks like it. */
extern bool outbox_is_sealed(const char *field, const char *value);

/* True if it is sealed with the first key of the file. */
extern bool outbox_sealed_anew(const OutboxKeyring *ring, const char *field,
							   const char *value);

/*
 * Seal and open a value.  Both return palloc'd text.  The value is returned as it
 * is when no file is set (seal), or when it is not sealed (unseal).  Of a URL only the
 * part behind the host is sealed, and the host is authenticated with it.  NULL:
 * impossible, and 'problem' (OUTBOX_SEAL_PROBLEM bytes) says why.
 */
#define OUTBOX_SEAL_PROBLEM 128
extern char *outbox_seal(const OutboxKeyring *ring, int32 endpoint_id, const char *field,
						 const char *value, char *problem);
extern char *outbox_unseal(const OutboxKeyring *ring, int32 endpoint_id,
						   const char *field, const char *value, char *problem);

#endif /* OUTBOX_SEAL_H */
