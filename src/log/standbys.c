/*
 * standbys.c
 *	  Owns how far standbys have the WAL: synchronous standbys, and standbys that
 *	  outbox.wait_for_standbys names.
 *
 * Without synchronous replication, PostgreSQL acknowledges a commit before a standby
 * has it.  A failover loses such commits.  A client may accept that.  But an event
 * that a receiver has got cannot be taken back.  So the worker can wait for standbys
 * although clients do not.
 */
#include "base/outbox.h"

#include "pgstat.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"
#include "utils/backend_status.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "log/standbys.h"

/*
 * The highest number of standbys in the setting.  As in PostgreSQL, a standby's name
 * is no longer than an identifier.
 */
#define MAX_STANDBYS 64

/* The setting, as its check hook passes it to its assign hook. */
typedef struct Wanted
{
	int	 count;	 /* this many standbys … */
	int	 nnames; /* … of these names; 0: of all that are streaming */
	char names[MAX_STANDBYS][NAMEDATALEN];
} Wanted;

/* The identity of a walsender: the index of its name in the setting, or one of these. */
#define UNNAMED (-1) /* counts like any standby */
#define IGNORED (-2) /* not a standby, or not named in the setting */

/* The identity of a walsender cannot change while its process lives. */
typedef struct Sender
{
	pid_t pid;
	int	  identity;
} Sender;

/*
 * µs.  Another walsender may get the same process id, so identities are read again
 * after this time.
 */
#define IDENTITY_LIFE (USECS_PER_SEC)

static const Wanted *wanted;  /* NULL: none */
static Sender		*senders; /* max_wal_senders of them */
static TimestampTz	 identified_at;
static int			 streaming; /* standbys that count, when they were last read */

/* -------------------------------------------------------------- setting */

/* Parses a number, a list of names, or a number and a list of names in parentheses. */
static bool
parse(char *text, Wanted *w, const char **complaint)
{
	char	 *list = text;
	char	 *end;
	List	 *names = NIL;
	ListCell *cell;
	long	  count = strtol(text, &end, 10);

	if (end != text)
	{
		while (*end == ' ')
			end++;
		if (count < 0 || count > MAX_STANDBYS)
		{
			*complaint = "The number is not from 0 to 64.";
			return false;
		}
		w->count = (int) count;
		if (*end == '\0')
			return true;
		list = end + 1;
		end = strrchr(list, ')');
		if (list[-1] != '(' || end == NULL || end[1 + strspn(end + 1, " ")] != '\0')
		{
			*complaint = "After a number, the names must be in parentheses.";
			return false;
		}
		*end = '\0';
	}
	else
		w->count = -1;

	if (!SplitIdentifierString(list, ',', &names) || list_length(names) > MAX_STANDBYS)
	{
		list_free(names);
		*complaint = "It is not a list of at most 64 names that are separated by commas.";
		return false;
	}
	foreach (cell, names)
		strlcpy(w->names[w->nnames++], (char *) lfirst(cell), NAMEDATALEN);
	list_free(names);
	if (w->count < 0)
		w->count = w->nnames;
	*complaint = "It asks for more standbys than it names.";
	return w->count <= w->nnames;
}

bool
outbox_standbys_check(char **newval, void **extra, GucSource source)
{
	Wanted	   *w = outbox_guc_alloc(sizeof(Wanted));
	char	   *copy = pstrdup(*newval);
	const char *complaint;
	bool		fine;

	if (w == NULL)
		return false;
	memset(w, 0, sizeof(Wanted));
	fine = parse(copy, w, &complaint);
	pfree(copy);
	if (!fine)
	{
		outbox_guc_free(w);
		GUC_check_errdetail("%s", complaint);
		GUC_check_errhint(
			"Write 2, or the application names 'standby_a, standby_b', or '1 (standby_a, standby_b)'.");
		return false;
	}
	*extra = w;
	return true;
}

void
outbox_standbys_assign(const char *newval, void *extra)
{
	wanted = extra != NULL && ((Wanted *) extra)->count > 0 ? extra : NULL;
	identified_at = 0;
}

/* ----------------------------------------------------------- walsenders */

static int
identify(const PgBackendStatus *status)
{
	/* A walsender in a database sends logical changes, so it is not a standby. */
	if (OidIsValid(status->st_databaseid))
		return IGNORED;

	for (int i = 0; i < wanted->nnames; i++)
		if (pg_strcasecmp(wanted->names[i], status->st_appname) == 0)
			return i;

	/* These stream, but are not servers that could take over. */
	if (wanted->nnames > 0 || strcmp(status->st_appname, "pg_receivewal") == 0 ||
		strcmp(status->st_appname, "pg_basebackup") == 0)
		return IGNORED;
	return UNNAMED;
}

/* Reads the identity of each walsender. */
static void
identify_senders(void)
{
	if (senders == NULL)
		senders = MemoryContextAllocZero(TopMemoryContext,
										 sizeof(Sender) * max_wal_senders);
	for (int i = 0; i < max_wal_senders; i++)
	{
		WalSnd *walsnd = &WalSndCtl->walsnds[i];

		SpinLockAcquire(&walsnd->mutex);
		senders[i].pid = walsnd->pid;
		SpinLockRelease(&walsnd->mutex);
		senders[i].identity = IGNORED;
	}
	for (int n = 1; n <= pgstat_fetch_stat_numbackends(); n++)
	{
		const PgBackendStatus *status = outbox_backend_status(n);

		for (int i = 0; i < max_wal_senders; i++)
			if (senders[i].pid != 0 && senders[i].pid == status->st_procpid)
				senders[i].identity = identify(status);
	}
	pgstat_clear_backend_activity_snapshot();
	identified_at = GetCurrentTimestamp();
}

/* How far standby 'i' has the WAL on disk.  Invalid: it is not streaming. */
static XLogRecPtr
flushed_by(int i, pid_t *pid)
{
	WalSnd	   *walsnd = &WalSndCtl->walsnds[i];
	WalSndState state;
	XLogRecPtr	flush;

	SpinLockAcquire(&walsnd->mutex);
	*pid = walsnd->pid;
	state = walsnd->state;
	flush = walsnd->flush;
	SpinLockRelease(&walsnd->mutex);
	if (*pid == 0 || (state != WALSNDSTATE_STREAMING && state != WALSNDSTATE_STOPPING))
		return InvalidXLogRecPtr;
	return flush;
}

static int
latest_first(const void *a, const void *b)
{
	XLogRecPtr left = *(const XLogRecPtr *) a;
	XLogRecPtr right = *(const XLogRecPtr *) b;

	return left > right ? -1 : left < right ? 1 : 0;
}

/*
 * How far as many standbys as the setting requires have the WAL on disk.  Of two
 * standbys with the same name, only the one that is ahead counts.
 */
static XLogRecPtr
wanted_lsn(void)
{
	XLogRecPtr *flushed = palloc0(sizeof(XLogRecPtr) *
								  (wanted->nnames + max_wal_senders));
	int			n = wanted->nnames;
	XLogRecPtr	result;
	bool		stale = senders == NULL ||
		GetCurrentTimestamp() - identified_at >= IDENTITY_LIFE;

	for (int i = 0; i < max_wal_senders; i++)
	{
		pid_t	   pid;
		XLogRecPtr flush = flushed_by(i, &pid);

		if (XLogRecPtrIsInvalid(flush))
			continue;
		if (stale || senders[i].pid != pid)
		{
			identify_senders();
			stale = false;
		}
		if (senders[i].pid != pid || senders[i].identity == IGNORED)
			continue;
		if (senders[i].identity == UNNAMED)
			flushed[n++] = flush;
		else
			flushed[senders[i].identity] = Max(flushed[senders[i].identity], flush);
	}
	qsort(flushed, n, sizeof(XLogRecPtr), latest_first);
	for (streaming = 0; streaming < n && !XLogRecPtrIsInvalid(flushed[streaming]);)
		streaming++;
	result = streaming >= wanted->count ? flushed[wanted->count - 1] : InvalidXLogRecPtr;
	pfree(flushed);
	return result;
}

static bool
synchronous(void)
{
	return max_wal_senders > 0 && SyncRepStandbyNames != NULL &&
		SyncRepStandbyNames[0] != '\0';
}

bool
outbox_standbys_required(void)
{
	return synchronous() || wanted != NULL;
}

/*
 * SyncRepWaitForLSN() cannot be used.  It returns at once if synchronous_commit is off
 * or local.  A cancel makes it return as if the standbys had the WAL.  And during the
 * wait, all requests of the worker would stop.
 */
XLogRecPtr
outbox_standbys_lsn(void)
{
	XLogRecPtr lsn = PG_UINT64_MAX;

	if (synchronous())
	{
		LWLockAcquire(SyncRepLock, LW_SHARED);
		lsn = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH];
		LWLockRelease(SyncRepLock);
	}
	return wanted != NULL ? Min(lsn, wanted_lsn()) : lsn;
}

bool
outbox_standbys_missing(void)
{
	return wanted != NULL && streaming < wanted->count;
}

void
outbox_standbys_explain(char *reason, size_t size)
{
	snprintf(
		reason, size,
		"outbox.wait_for_standbys asks for %d of its standbys, and %d are streaming: nothing is sent",
		wanted->count, streaming);
}
