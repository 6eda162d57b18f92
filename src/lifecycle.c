/*
 * lifecycle.c
 *	  Owns the commands that want a database for themselves: it sends the
 *	  worker away before them, and keeps it away until they are over.
 *
 * DROP DATABASE, ALTER DATABASE … RENAME and SET TABLESPACE, and CREATE
 * DATABASE … TEMPLATE fail while anybody is connected, and nobody should have
 * to know that a worker is.
 *
 * And it rings for prepared transactions when they are committed.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "lifecycle.h"
#include "shmem.h"
#include "wakeup.h"

/*
 * Milliseconds.  PostgreSQL itself then waits for another five seconds before
 * it says that the database is being accessed.
 */
#define PATIENCE 5000
#define POLL_INTERVAL 5

/* One hold of this transaction. */
typedef struct Hold
{
	OutboxDatabase *db;
	Oid			dboid;
	struct Hold *next;
} Hold;

static Hold *holds = NULL;
static ProcessUtility_hook_type previous_utility = NULL;

/*
 * Holds end with the transaction, however it ends.  That is also how they die
 * with a session: whoever exits aborts his transaction first.  RENAME inside a
 * transaction block takes effect, and lets others connect, no earlier.
 */
static void
at_transaction_end(XactEvent event, void *arg)
{
	(void) arg;
	if (holds == NULL ||
		(event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		 event != XACT_EVENT_PREPARE))
		return;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	while (holds != NULL)
	{
		Hold	   *hold = holds;

		/* A slot that is held is not freed, so this is still the same one. */
		Assert(hold->db->dboid == hold->dboid);
		hold->db->holds--;
		holds = hold->next;
		pfree(hold);
	}
	LWLockRelease(outbox_shared->lock);
	outbox_launcher_ring();
}

/*
 * Counts us in, and asks a worker that is there to leave.  False: there is no
 * slot to hold.  The launcher, woken afterwards, stops one that is only
 * starting, which we cannot: it has no pid yet.
 */
static bool
take_hold(Oid dboid)
{
	static bool registered = false;
	OutboxDatabase *db = outbox_database_slot(dboid, true);
	Hold	   *hold;
	bool		held;

	if (db == NULL)
		return false;
	if (!registered)
	{
		RegisterXactCallback(at_transaction_end, NULL);
		registered = true;
	}
	hold = MemoryContextAlloc(TopMemoryContext, sizeof(Hold));

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	held = db->dboid == dboid;
	if (held)
	{
		db->holds++;
		hold->db = db;
		hold->dboid = dboid;
		hold->next = holds;
		holds = hold;

		/* Its pid is its own as long as we have the lock. */
		if (db->pid != 0)
			kill(db->pid, SIGTERM);
	}
	LWLockRelease(outbox_shared->lock);

	if (!held)
		pfree(hold);
	outbox_launcher_ring();
	return held;
}

/* The pid of a worker that is still there, 0: none, -1: one is starting. */
static pid_t
worker_of(OutboxDatabase *db)
{
	pid_t		pid;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	pid = db->pid;
	if (pid == 0 && db->state != OUTBOX_WORKER_NONE)
		pid = -1;
	LWLockRelease(outbox_shared->lock);
	return pid;
}

/*
 * Waits until the worker has left.  It clears its slot a moment before it is
 * out of the list of processes, where PostgreSQL will look for it.
 */
static void
wait_for_leave(OutboxDatabase *db)
{
	TimestampTz begin = GetCurrentTimestamp();
	pid_t		last = 0;

	for (;;)
	{
		pid_t		pid = worker_of(db);

		if (pid > 0)
			last = pid;
		if (pid == 0 && (last == 0 || BackendPidGetProc(last) == NULL))
			return;
		if (TimestampDifferenceExceeds(begin, GetCurrentTimestamp(), PATIENCE))
			return;				/* PostgreSQL will say who is in the way */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_INTERVAL, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Only the database's owner may send its worker away; nobody else may do
 * anything here that would need it.  (Whoever has CREATEDB may copy a template
 * that is not his own, but templates have no worker.)  If the command is not
 * allowed for another reason, PostgreSQL will say so, and the worker comes
 * back when the transaction ends.
 */
static void
send_away(const char *datname)
{
	Oid			dboid = get_database_oid(datname, true);

	if (!OidIsValid(dboid) || !outbox_database_owned(dboid, GetUserId()))
		return;
	if (take_hold(dboid))
		wait_for_leave(holds->db);
}

static const char *
option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *def = lfirst_node(DefElem, cell);

		if (strcmp(def->defname, name) == 0 && def->arg != NULL)
			return defGetString(def);
	}
	return NULL;
}

/* The database that the command wants for itself; NULL: none. */
static const char *
wanted_database(Node *parsetree)
{
	const char *template;

	switch (nodeTag(parsetree))
	{
		case T_DropdbStmt:
			return castNode(DropdbStmt, parsetree)->dbname;
		case T_RenameStmt:
			return castNode(RenameStmt, parsetree)->subname;
		case T_AlterDatabaseStmt:
			if (option(castNode(AlterDatabaseStmt, parsetree)->options, "tablespace") == NULL)
				return NULL;
			return castNode(AlterDatabaseStmt, parsetree)->dbname;
		case T_CreatedbStmt:
			template = option(castNode(CreatedbStmt, parsetree)->options, "template");
			return template != NULL ? template : "template1";
		default:
			return NULL;
	}
}

static bool
concerns_databases(Node *parsetree)
{
	switch (nodeTag(parsetree))
	{
		case T_DropdbStmt:
		case T_AlterDatabaseStmt:
		case T_CreatedbStmt:
			return true;
		case T_RenameStmt:
			return castNode(RenameStmt, parsetree)->renameType == OBJECT_DATABASE;
		default:
			return false;
	}
}

/* What the prepared transaction rang for died with its session. */
static bool
commits_prepared(Node *parsetree)
{
	return IsA(parsetree, TransactionStmt) &&
		castNode(TransactionStmt, parsetree)->kind == TRANS_STMT_COMMIT_PREPARED;
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest,
				QueryCompletion *qc)
{
	bool		concerned = concerns_databases(pstmt->utilityStmt);

	if (concerned)
	{
		const char *datname = wanted_database(pstmt->utilityStmt);

		if (datname != NULL)
			send_away(datname);
	}

	if (previous_utility != NULL)
		previous_utility(pstmt, queryString, readOnlyTree, context, params,
						 queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);

	if (commits_prepared(pstmt->utilityStmt))
	{
		outbox_mark_emitted();
		outbox_mark_scheduled(DT_NOBEGIN);
		outbox_mark_changed();
	}

	/*
	 * There is a database more, or one less, or one that lets nobody in: seen
	 * when the transaction commits.
	 */
	if (concerned)
		outbox_mark_databases();
}

void
outbox_lifecycle_init(void)
{
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
