/*
 * database_list.c
 *	  Owns the launcher's list of the server's databases: the result of its last
 *	  read of pg_database, and which of them were seen to have no extension.
 */
#include "base/outbox.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "server/database_list.h"

/*
 * Milliseconds.  Commands that change pg_database wake the launcher.  This interval is
 * for changes that wake nothing, such as an UPDATE of the catalog.
 */
#define SCAN_INTERVAL 10000

/* datconnlimit of a database whose DROP was interrupted */
#define INVALID_DATABASE (-2)

static HTAB		  *known = NULL;
static uint32	   scan_number = 0;
static TimestampTz next_scan_at = 0;

/* The database of each slot when pg_database was last read. */
static Oid scanned[OUTBOX_MAX_DATABASES];

OutboxKnownDatabase *
outbox_database_known(Oid dboid)
{
	return known == NULL ? NULL : hash_search(known, &dboid, HASH_FIND, NULL);
}

bool
outbox_database_gone(int slot)
{
	return outbox_shared->databases[slot].dboid == scanned[slot];
}

static void
note_database(Form_pg_database form)
{
	bool				 found;
	OutboxKnownDatabase *database = hash_search(known, &form->oid, HASH_ENTER, &found);

	if (!found)
		database->without = false;
	database->name = form->datname;
	database->servable = form->datallowconn && !form->datistemplate &&
		form->datconnlimit != INVALID_DATABASE;
	database->seen_in = scan_number;
}

static void
read_pg_database(void)
{
	Relation	  rel;
	TableScanDesc scan;
	HeapTuple	  tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
		note_database((Form_pg_database) GETSTRUCT(tuple));
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
}

static void
forget_unseen(bool reprobe)
{
	HASH_SEQ_STATUS		 status;
	OutboxKnownDatabase *database;

	hash_seq_init(&status, known);
	while ((database = hash_seq_search(&status)) != NULL)
	{
		if (database->seen_in != scan_number)
			hash_search(known, &database->dboid, HASH_REMOVE, NULL);
		else if (reprobe)
			database->without = false;
	}
}

/*
 * Claims all slots at once, although the databases are probed one after the other.
 * Each database then has a slot in which the reason why it must wait can be shown.
 */
bool
outbox_databases_claim(void)
{
	HASH_SEQ_STATUS		 status;
	OutboxKnownDatabase *database;
	bool				 claimed = false;

	hash_seq_init(&status, known);
	while ((database = hash_seq_search(&status)) != NULL)
	{
		if (!database->servable || database->without ||
			outbox_database_slot(database->dboid, false) != NULL)
			continue;
		if (outbox_database_slot(database->dboid, true) == NULL)
		{
			hash_seq_term(&status);
			break; /* no slot is free */
		}
		claimed = true;
	}
	return claimed;
}

/*
 * The slots' databases are noted before pg_database is read.  If such a database is
 * missing from the rows read afterwards, it was dropped.  A slot that is claimed during
 * the scan may belong to a database that is newer.
 */
static void
scan_databases(void)
{
	bool reprobe;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	reprobe = outbox_shared->reprobe;
	outbox_shared->rescan = false;
	outbox_shared->reprobe = false;
	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
		scanned[i] = outbox_shared->databases[i].dboid;
	LWLockRelease(outbox_shared->lock);

	scan_number++;
	read_pg_database();
	forget_unseen(reprobe);
	(void) outbox_databases_claim();
	next_scan_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SCAN_INTERVAL);
}

static bool
scan_is_due(void)
{
	bool due;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	due = outbox_shared->rescan || outbox_shared->reprobe ||
		GetCurrentTimestamp() >= next_scan_at;
	for (int i = 0; i < OUTBOX_MAX_DATABASES && !due; i++)
	{
		Oid dboid = outbox_shared->databases[i].dboid;

		due = OidIsValid(dboid) && dboid != scanned[i] &&
			outbox_database_known(dboid) == NULL;
	}
	LWLockRelease(outbox_shared->lock);
	return due;
}

TimestampTz
outbox_databases_update(void)
{
	if (known == NULL)
	{
		HASHCTL ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(OutboxKnownDatabase)};

		known = hash_create("outbox databases", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	}
	if (scan_is_due())
		scan_databases();
	return next_scan_at;
}
