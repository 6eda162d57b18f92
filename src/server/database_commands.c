/*
 * database_commands.c
 *	  Owns the commands that want a database for themselves: it sends the
 *	  workers away before them, and keeps them away until they are over.
 *
 * DROP DATABASE, ALTER DATABASE … RENAME and SET TABLESPACE, and CREATE
 * DATABASE … TEMPLATE fail while anybody is connected, and nobody should have
 * to know that a worker is.
 *
 * And it tells wakeup.c of prepared transactions, and keeps the tables of outbox
 * out of subscriptions.
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

#include "base/compat.h"
#include "server/database_commands.h"
#include "server/shmem.h"
#include "server/subscription.h"
#include "server/wakeup.h"

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
	Oid				dboid;
	struct Hold	   *next;
} Hold;

static Hold					   *holds = NULL;
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
		Hold *hold = holds;

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
 * Counts us in, and asks the workers that are there to leave.  False: there is
 * no slot to hold.  The launcher, woken afterwards, stops those that are only
 * starting, which we cannot: they have no pid yet.
 */
static bool
take_hold(Oid dboid)
{
	static bool		registered = false;
	OutboxDatabase *db = outbox_database_slot(dboid, true);
	Hold		   *hold;
	bool			held;

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

		/* A pid is its own as long as we have the lock. */
		for (int w = 0; w < db->nworkers; w++)
			if (db->workers[w].pid != 0)
				kill(db->workers[w].pid, SIGTERM);
	}
	LWLockRelease(outbox_shared->lock);

	if (!held)
		pfree(hold);
	outbox_launcher_ring();
	return held;
}

/*
 * Is a worker there, or starting?  Notes the pids of those that are, because
 * they clear their places a moment before they are out of the list of
 * processes, where PostgreSQL will look for them.
 */
static bool
workers_are_there(OutboxDatabase *db, pid_t *pids)
{
	bool found = false;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	for (int w = 0; w < db->nworkers; w++)
	{
		if (db->workers[w].pid != 0)
			pids[w] = db->workers[w].pid;
		found = found || db->workers[w].pid != 0 ||
			db->workers[w].state != OUTBOX_WORKER_NONE;
	}
	LWLockRelease(outbox_shared->lock);
	for (int w = 0; w < OUTBOX_MAX_WORKERS && !found; w++)
		found = pids[w] != 0 && BackendPidGetProc(pids[w]) != NULL;
	return found;
}

/* Waits until the workers have left. */
static void
wait_for_leave(OutboxDatabase *db)
{
	TimestampTz begin = GetCurrentTimestamp();
	pid_t		pids[OUTBOX_MAX_WORKERS] = {0};

	while (workers_are_there(db, pids))
	{
		if (TimestampDifferenceExceeds(begin, GetCurrentTimestamp(), PATIENCE))
			return; /* PostgreSQL will say who is in the way */
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
	Oid dboid = get_database_oid(datname, true);

	if (!OidIsValid(dboid) || !outbox_database_owned(dboid, GetUserId()))
		return;
	if (take_hold(dboid))
		wait_for_leave(holds->db);
}

static const char *
option(List *options, const char *name)
{
	ListCell *cell;

	foreach (cell, options)
	{
		DefElem *def = lfirst_node(DefElem, cell);

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
			if (option(castNode(AlterDatabaseStmt, parsetree)->options, "tablespace") ==
				NULL)
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

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	bool				   concerned = concerns_databases(pstmt->utilityStmt);
	const TransactionStmt *transaction = IsA(pstmt->utilityStmt, TransactionStmt) ?
		castNode(TransactionStmt, pstmt->utilityStmt) :
		NULL;

	if (concerned)
	{
		const char *datname = wanted_database(pstmt->utilityStmt);

		if (datname != NULL)
			send_away(datname);
	}

	if (transaction != NULL && transaction->kind == TRANS_STMT_PREPARE)
		outbox_wakeup_prepare(transaction->gid);

	if (previous_utility != NULL)
		previous_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
						 dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
								queryEnv, dest, qc);

	if (transaction != NULL &&
		(transaction->kind == TRANS_STMT_COMMIT_PREPARED ||
		 transaction->kind == TRANS_STMT_ROLLBACK_PREPARED))
		outbox_wakeup_end_prepared(transaction->gid,
								   transaction->kind == TRANS_STMT_COMMIT_PREPARED);
	outbox_leave_subscription(pstmt->utilityStmt);

	/*
	 * There is a database more, or one less, or one that lets nobody in: seen
	 * when the transaction commits.
	 */
	if (concerned)
		outbox_mark_databases();
}

void
outbox_database_commands_init(void)
{
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
