/*
 * source_keeper.c
 *	  Owns the process that looks after the servers which a database follows: it asks each
 *	  for its state, and has it empty tables that were taken (outbox.keep_sources()) and
 *	  remove forgotten events.  If this server or the source was restored or promoted, it
 *	  follows the source anew.
 *
 * It is a process of its own, for one round: a source that hangs holds up no delivery.  To
 * remove forgotten events, and to follow anew, takes longer.  So the round starts another
 * process for each source that needs it: a source that hangs holds up no other source.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "base/query.h"
#include "log/transaction.h"
#include "server/taken.h"
#include "server/worker_processes.h"
#include "worker/source_keeper.h"

#define ROUND_EVERY (30 * USECS_PER_SEC)
#define ROUND_MOST 20000   /* ms */
#define FORGET_MOST 600000 /* ms. The next round goes on with the rest. */

static TimestampTz			   next_round = DT_NOEND; /* while it follows no source */
static BackgroundWorkerHandle *keeper;				  /* NULL: none was started yet */

void
outbox_sources_configure(void)
{
	if (outbox_query("SELECT FROM outbox.followed LIMIT 1") == 0)
		next_round = DT_NOEND;
	else if (next_round == DT_NOEND)
		next_round = 0;
	outbox_taken_forget();
}

TimestampTz
outbox_sources_next_time(void)
{
	return next_round;
}

/*
 * Starts this process, for all sources ("") or one.  If the server has no process left,
 * the next round tries again.
 */
static void
start(const char *source, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker = outbox_background_worker("keeper", BGW_NEVER_RESTART);

	strcpy(worker.bgw_name, "outbox keeper of sources");
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	strlcpy(worker.bgw_extra, source, sizeof(worker.bgw_extra));
	(void) RegisterDynamicBackgroundWorker(&worker, handle);
}

void
outbox_sources_run(void *now)
{
	MemoryContext old;
	pid_t		  pid;

	next_round = *(TimestampTz *) now + ROUND_EVERY;
	if (keeper != NULL && GetBackgroundWorkerPid(keeper, &pid) != BGWH_STOPPED)
		return;
	if (keeper != NULL)
		pfree(keeper);
	keeper = NULL;
	old = MemoryContextSwitchTo(TopMemoryContext);
	start("", &keeper);
	MemoryContextSwitchTo(old);
}

static void
begin(void)
{
	StartTransactionCommand();
	outbox_session_fix_role(true);
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
}

static void
commit(void)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	outbox_session_fix_role(false);
}

/*
 * Calls a function in a transaction, for at most so many milliseconds.  0: for any time, but
 * each answer of a source has a bound (source_link.c).
 */
static void
call(const char *query, const char *source, int most)
{
	begin();
	pgstat_report_activity(STATE_RUNNING, query);
	if (most > 0)
		enable_timeout_after(STATEMENT_TIMEOUT, most);
	outbox_query(query, arg_text(source));
	disable_timeout(STATEMENT_TIMEOUT, false);
	commit();
}

/* Starts a process for each source for which more is to be done. */
static void
start_others(void)
{
	begin();
	outbox_query(
		"SELECT f.name FROM outbox.followed f"
		" WHERE f.lost = 'restored'"
		" AND (f.anew_at IS NULL OR f.anew_at <= pg_catalog.now())"
		" OR EXISTS (SELECT FROM outbox.forgotten g WHERE f.name = ANY (g.sources))");
	for (uint64 i = 0; i < SPI_processed; i++)
		start(SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1), NULL);
	commit();
}

/* The process. */
void
outbox_keeper_main(Datum arg)
{
	const char *source = MyBgworkerEntry->bgw_extra;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	if (!outbox_session_init_as_owner())
		proc_exit(0);
	if (source[0] == '\0')
	{
		call("SELECT outbox.keep_sources()", NULL, ROUND_MOST);
		start_others();
		proc_exit(0);
	}
	call("SELECT outbox.forget_at_sources($1)", source, FORGET_MOST);
	call("SELECT outbox.follow_anew($1)", source, 0);
	proc_exit(0);
}
