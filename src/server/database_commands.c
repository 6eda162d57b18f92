/*
 * database_commands.c
 *	  Owns the commands that need a database without connections.  It ends the
 *	  database's workers before such a command, and keeps them away until its
 *	  transaction ends.
 *
 * DROP DATABASE, ALTER DATABASE … RENAME and SET TABLESPACE, and CREATE DATABASE …
 * TEMPLATE fail while a session is connected.  The user should not need to know that a
 * worker is.
 *
 * The same hook reports prepared transactions to wakeup.c, and keeps the tables of
 * outbox out of subscriptions.
 */
#include "base/outbox.h"

#include <signal.h>

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "tcop/utility.h"
#include "utils/wait_event.h"

#include "base/compat.h"
#include "server/database_commands.h"
#include "server/shmem.h"
#include "server/subscription.h"
#include "server/wakeup.h"

/*
 * Milliseconds.  After that PostgreSQL itself waits for five more seconds before it
 * reports that the database is being accessed.
 */
#define PATIENCE 5000
#define POLL_INTERVAL 5

/* One hold of this transaction on a database. */
typedef struct Hold
{
	OutboxDatabase *db;
	Oid				dboid;
	struct Hold	   *next;
} Hold;

static Hold					   *holds = NULL;
static ProcessUtility_hook_type previous_utility = NULL;

/*
 * Holds end with the transaction, at commit, abort or PREPARE.  An exiting session
 * aborts its transaction first, which releases its holds, too.  RENAME inside a
 * transaction block takes effect at the commit, and no session can connect under the
 * new name before.
 */
static void
at_transaction_end(XactEvent event, void *arg)
{
	if (holds == NULL ||
		(event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		 event != XACT_EVENT_PREPARE))
		return;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	while (holds != NULL)
	{
		Hold *hold = holds;

		/* A slot with a hold is not freed, so it is still that of this database. */
		Assert(hold->db->dboid == hold->dboid);
		hold->db->holds--;
		holds = hold->next;
		pfree(hold);
	}
	LWLockRelease(outbox_shared->lock);
	outbox_launcher_wake();
}

/*
 * Adds a hold, and sends SIGTERM to the workers of the database.  Returns false if the
 * database has no slot.  A worker that is only starting has no pid yet.  The launcher
 * is woken to stop it.
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

		/* While the lock is held, a pid cannot become another process's. */
		for (int w = 0; w < db->nworkers; w++)
			if (db->workers[w].pid != 0)
				kill(db->workers[w].pid, SIGTERM);
	}
	LWLockRelease(outbox_shared->lock);

	if (!held)
		pfree(hold);
	outbox_launcher_wake();
	return held;
}

/*
 * True if a worker of the database exists, or is starting.  A worker clears its slot a
 * moment before it leaves PostgreSQL's list of processes, which the command checks.
 * So the pids are kept in 'pids', and each is looked up in that list.
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

/* Waits until the workers have ended. */
static void
wait_for_leave(OutboxDatabase *db)
{
	TimestampTz begin = GetCurrentTimestamp();
	pid_t		pids[OUTBOX_MAX_WORKERS] = {0};

	while (workers_are_there(db, pids))
	{
		if (TimestampDifferenceExceeds(begin, GetCurrentTimestamp(), PATIENCE))
			return; /* PostgreSQL then reports which sessions are connected */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_INTERVAL, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Only the owner of a database can end its workers.  Every command here that needs
 * this needs the owner, too.  (A role with CREATEDB may copy a template that it does
 * not own, but templates have no workers.)  If the command is refused for another
 * reason, PostgreSQL reports it, and the workers start again when the transaction
 * ends.
 */
static void
end_workers(const char *datname)
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

/* The database that the command needs without connections; NULL: none. */
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

/* The work that is left when a command has run. */
typedef struct Aftermath
{
	bool  databases;	/* it concerns pg_database */
	bool  prepared;		/* it commits a prepared transaction */
	char *subscription; /* that it makes or changes; NULL: none */
} Aftermath;

/*
 * Does the work before the command, and notes the work after it.  A command may free its
 * own statement: a procedure that ends its transaction gives up the plan that the
 * statement is a part of.  So nothing is read of the statement once it runs, and the
 * names are copied.  They are needed only by commands that end no transaction.
 */
static Aftermath
before_command(Node *parsetree)
{
	Aftermath	after = {.databases = concerns_databases(parsetree)};
	const char *datname = after.databases ? wanted_database(parsetree) : NULL;

	if (datname != NULL)
		end_workers(datname);
	if (IsA(parsetree, TransactionStmt))
		after.prepared = castNode(TransactionStmt, parsetree)->kind ==
			TRANS_STMT_COMMIT_PREPARED;
	else if (IsA(parsetree, CreateSubscriptionStmt))
		after.subscription = pstrdup(
			castNode(CreateSubscriptionStmt, parsetree)->subname);
	else if (IsA(parsetree, AlterSubscriptionStmt))
		after.subscription = pstrdup(castNode(AlterSubscriptionStmt, parsetree)->subname);
	return after;
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	const Aftermath			 after = before_command(pstmt->utilityStmt);
	ProcessUtility_hook_type run = previous_utility != NULL ? previous_utility :
															  standard_ProcessUtility;

	run(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (after.prepared)
		outbox_mark_prepared();
	if (after.subscription != NULL)
		outbox_leave_subscription(after.subscription);

	/*
	 * The list of databases has changed, or one does not allow connections any more.
	 * The launcher reads it when the transaction commits.
	 */
	if (after.databases)
		outbox_mark(OUTBOX_MARK_DATABASES);
}

void
outbox_database_commands_init(void)
{
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
