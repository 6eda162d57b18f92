/*
 * version.c
 *	  Owns the check whether the library and the SQL objects fit each other.
 */
#include "base/version.h"

#include "utils/builtins.h"
#include "utils/lsyscache.h"

int
outbox_version_hint(void)
{
	return errhint(
		"Run ALTER EXTENSION outbox UPDATE, or restart the server with the library of the installed version.");
}

void
outbox_refuse_contract(FunctionCallInfo fcinfo)
{
	char *name = get_func_name(fcinfo->flinfo->fn_oid);

	ereport(
		ERROR,
		(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		 errmsg("function \"%s.%s\" is not declared as the library of outbox %s knows it",
				OUTBOX_SCHEMA, name ? name : "?", OUTBOX_VERSION),
		 outbox_version_hint()));
}

/* Compares versions, which are numbers separated by dots.  Less than 0: a is earlier. */
static int
compare_versions(const char *a, const char *b)
{
	for (;;)
	{
		char *a_end;
		char *b_end;
		long  x = strtol(a, &a_end, 10);
		long  y = strtol(b, &b_end, 10);

		if (x != y)
			return x < y ? -1 : 1;
		if (*a_end != '.' || *b_end != '.')
			return strcmp(a_end, b_end);
		a = a_end + 1;
		b = b_end + 1;
	}
}

char *
outbox_version_problem(const char *objects)
{
	int order = compare_versions(objects, OUTBOX_VERSION);

	if (order == 0)
		return NULL;
	return psprintf(
		order < 0 ?
			"the extension's objects are of version %s, older than the library, which is of %s: ALTER EXTENSION outbox UPDATE" :
			"the extension's objects are of version %s, newer than the library that the server has loaded, which is of %s: restart the server with the new library",
		objects, OUTBOX_VERSION);
}

/*
 * require_library(version): the first command of each script.  After new files are
 * installed, a server that was not restarted still has the old library.  Without this
 * check PostgreSQL would only report that some function was not found.
 */
OUTBOX_FUNCTION(outbox_require_library_1_0, 1)
{
	char *wanted = text_to_cstring(PG_GETARG_TEXT_PP(0));

	if (compare_versions(OUTBOX_VERSION, wanted) < 0)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg(
				 "objects of outbox %s need the library of that version, and the one that is loaded is of %s",
				 wanted, OUTBOX_VERSION),
			 errhint(
				 "Restart the server, so that it loads the library that was installed with them, and run the command again.")));
	PG_RETURN_VOID();
}
