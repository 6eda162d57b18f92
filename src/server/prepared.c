/*
 * prepared.c
 *	  Owns the marks of prepared transactions: the processes to wake when they
 *	  are committed.
 *
 * The marks of wakeup.c are lost when the session that prepares ends.  Another session
 * commits, perhaps after a restart.  So each PREPARE TRANSACTION stores a note in shared
 * memory, even when it concerns nothing of outbox.  COMMIT PREPARED then knows which
 * processes to wake.  A transaction that was prepared before the server started has no
 * note, and may concern anything.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/hsearch.h"

#include "base/compat.h"
#include "server/prepared.h"
#include "server/shmem.h"

#define GID_SIZE 200 /* GIDSIZE of PostgreSQL's twophase.c */

typedef struct Note
{
	char		gid[GID_SIZE]; /* key */
	OutboxMarks marks;
} Note;

static HTAB *notes;
static char	 preparing[GID_SIZE]; /* gid of the PREPARE that runs, or empty */
static bool	 noted;				  /* this transaction has stored a note */

static shmem_request_hook_type previous_request;
static shmem_startup_hook_type previous_startup;

/* Space for one note for each transaction that can be prepared at the same time. */
static void
request_shmem(void)
{
	if (previous_request != NULL)
		previous_request();
	RequestAddinShmemSpace(hash_estimate_size(max_prepared_xacts, sizeof(Note)));
}

static void
startup_shmem(void)
{
	HASHCTL info = {.keysize = GID_SIZE, .entrysize = sizeof(Note)};

	if (previous_startup != NULL)
		previous_startup();
	if (max_prepared_xacts == 0)
		return;
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	notes = outbox_shmem_init_hash("outbox prepared transactions", max_prepared_xacts,
								   &info, HASH_ELEM | HASH_STRINGS);
	LWLockRelease(AddinShmemInitLock);
}

void
outbox_prepared_init(void)
{
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
	previous_request = shmem_request_hook;
	shmem_request_hook = request_shmem;
}

static void
forget(const char *gid)
{
	LWLockAcquire(outbox_shared->prepared_lock, LW_EXCLUSIVE);
	hash_search(notes, gid, HASH_REMOVE, NULL);
	LWLockRelease(outbox_shared->prepared_lock);
}

void
outbox_prepared_begin(const char *gid)
{
	if (notes != NULL)
		strlcpy(preparing, gid, GID_SIZE);
}

void
outbox_prepared_at_transaction_end(XactEvent event, const OutboxMarks *marks)
{
	Note *note;
	bool  found;

	if (preparing[0] == '\0')
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:

			/*
			 * The note is stored before other sessions can commit the transaction.  If
			 * the gid is already in use, the note is that of another transaction, and
			 * PostgreSQL reports the error.  If there is no space, no note is stored,
			 * and the transaction may concern anything.
			 */
			LWLockAcquire(outbox_shared->prepared_lock, LW_EXCLUSIVE);
			note = hash_search(notes, preparing, HASH_ENTER_NULL, &found);
			noted = note != NULL && !found;
			if (noted)
				note->marks = *marks;
			LWLockRelease(outbox_shared->prepared_lock);
			break;
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_COMMIT:
			preparing[0] = '\0';
			noted = false;
			break;
		case XACT_EVENT_ABORT:
			if (noted)
				forget(preparing);
			preparing[0] = '\0';
			noted = false;
			break;
		default:
			break;
	}
}

bool
outbox_prepared_ended(const char *gid, OutboxMarks *marks)
{
	char  key[GID_SIZE];
	Note *note;

	if (notes == NULL)
		return false;
	strlcpy(key, gid, GID_SIZE);
	LWLockAcquire(outbox_shared->prepared_lock, LW_EXCLUSIVE);
	note = hash_search(notes, key, HASH_FIND, NULL);
	if (note != NULL)
	{
		*marks = note->marks;
		hash_search(notes, key, HASH_REMOVE, NULL);
	}
	LWLockRelease(outbox_shared->prepared_lock);
	return note != NULL;
}
