/*
 * no_server.h
 *	  Stands in for functions of the server, for files that are linked without one.
 *	  Nothing here throws an error.
 */
bool
errstart(int elevel, const char *domain)
{
	(void) elevel;
	(void) domain;
	abort();
}

bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	(void) filename;
	(void) lineno;
	(void) funcname;
	abort();
}

int
errcode(int sqlerrcode)
{
	return sqlerrcode;
}

int
errmsg(const char *fmt, ...)
{
	(void) fmt;
	return 0;
}

int
errmsg_internal(const char *fmt, ...)
{
	(void) fmt;
	return 0;
}

int
errhint(const char *fmt, ...)
{
	(void) fmt;
	return 0;
}

#ifdef USE_ASSERT_CHECKING
#if PG_VERSION_NUM < 160000
void
ExceptionalCondition(const char *condition, const char *type, const char *file, int line)
{
	(void) type;
#else
void
ExceptionalCondition(const char *condition, const char *file, int line)
{
#endif
	fprintf(stderr, "%s:%d: not true: %s\n", file, line, condition);
	abort();
}
#endif
