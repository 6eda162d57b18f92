/*
 * outbox_null.c
 *	  A sink that accepts everything at once: the example of doc/writing-a-sink.md.
 *
 * It is built against the installed header alone, as any sink outside of outbox.  Its
 * URLs are null://host/MODE:
 *
 *	  null://h/        every event is accepted
 *	  null://h/fail    the first attempt of each event fails
 *	  null://h/abort   no event is ever accepted
 *	  null://h/link    the link is down while the file JOURNAL.down exists
 *	  null://h/say     no event is accepted, for a reason that is the event's body
 *	  null://h/poison  an event whose body has the word poison is never accepted
 *	  null://h/hold    two of three events wait for their answer while it exists
 *	  null://h/look    the journal has a line for each time that state was called
 *	  null://h/lack    there is no memory for the link while JOURNAL.down exists
 *	  null://h/stuck   a poll with an event does not return while JOURNAL.stuck exists.  If
 *					   the file says "abort" or "null", a thread crashes as well
 *
 * What was sent is written to the file that the server's environment names in
 * OUTBOX_NULL_JOURNAL.  A line has the mode, the result, and the message, or the mode,
 * "open", and the endpoint's config and credentials.
 */
#include "postgres.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "extension/outbox/transport.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

#ifndef NULL_ABI
#define NULL_ABI OUTBOX_TRANSPORT_ABI
#endif

extern PGDLLEXPORT const OutboxTransport *outbox_sink(void);

typedef enum Mode
{
	MODE_ACCEPT,
	MODE_FAIL,
	MODE_ABORT,
	MODE_LINK,
	MODE_SAY,
	MODE_POISON,
	MODE_HOLD,
	MODE_LOOK,
	MODE_LACK,
	MODE_STUCK
} Mode;

static const char *const modes[] = {"",		  "fail", "abort", "link", "say",
									"poison", "hold", "look",  "lack", "stuck"};

struct OutboxLink
{
	char	name[16];
	Mode	mode; /* of another name: that of "" */
	int32_t endpoint;
};

struct OutboxTransfer
{
	OutboxTransfer *next;
	void		   *delivery; /* NULL: it was cancelled */
	OutboxResult	result;
	bool			held;
	int32_t			stuck;		/* the endpoint, if its mode says so */
	char			words[256]; /* why it fails, if it does */
};

static OutboxDone done;
static void (*serves)(int32_t endpoint);
static void (*thread_serves)(const volatile int32_t *endpoint);
static int32_t		   crashes_for;
static FILE			  *journal;
static char			   down_file[1024];
static char			   stuck_file[1024];
static int			   links;
static OutboxTransfer *first; /* what was started, in this order */
static OutboxTransfer *last;
static OutboxTransfer *held; /* those that wait for their answer */
static OutboxTransfer *unused;

/* ------------------------------------------------------------- checking */

static const char *const config_names[] = {"auth", "comment", NULL};
static const char *const credential_names[] = {"user", "token", NULL};

/* With auth "token" there has to be one. */
static const char *
null_check(const OutboxTarget *target, OutboxAdvice *advice)
{
	const OutboxOption *auth = outbox_option_find(target->config, target->nconfig,
												  "auth");
	const OutboxOption *token = outbox_option_find(target->credentials,
												   target->ncredentials, "token");

	advice->field = "config";
	if (auth && strcmp(auth->value, "token") != 0)
	{
		advice->hint = "Use token, or leave it out.";
		return "it knows no other auth than token";
	}
	advice->field = "credentials";
	if (auth && token == NULL)
	{
		advice->hint = "Pass credentials => '{\"token\": \"…\"}'.";
		return "auth is token, and credentials has none";
	}
	if (token && auth == NULL)
		advice->notice = "the null sink has a token, and does not use it";
	return NULL;
}

/* Its credentials belong to the host. */
static bool
null_keeps_credentials(const OutboxTarget *from, const OutboxTarget *to)
{
	size_t len = strcspn(from->url, "/") + 2; /* null:// */

	len += strcspn(from->url + len, "/?#");
	return strncasecmp(from->url, to->url, len) == 0 &&
		strchr("/?#", to->url[len]) != NULL;
}

/* ------------------------------------------------------------- sending */

static void
null_init(const OutboxServices *services)
{
	const char *file = getenv("OUTBOX_NULL_JOURNAL");

	atexit(abort); /* 181: it does not run in a worker */
#ifdef NULL_FAILS
	ereport(ERROR, (errmsg("the null sink was built to fail")));
#endif
	done = services->done;
	serves = services->serves;
	thread_serves = services->thread_serves;
	if (file == NULL)
		return;
	journal = fopen(file, "a");
	if (journal == NULL)
		ereport(ERROR,
				(errcode_for_file_access(), errmsg("could not open the journal: %m")));
	snprintf(down_file, sizeof(down_file), "%s.down", file);
	snprintf(stuck_file, sizeof(stuck_file), "%s.stuck", file);
}

static void
null_reload(void)
{
}

static int
null_fd(void)
{
	return -1;
}

static long
null_timeout(void)
{
	if (first)
		return 0;
	if (held)
		return 10;
	return links > 0 && journal ? 50 : -1; /* a link may come up */
}

static void
release_held(void)
{
	while (held)
	{
		OutboxTransfer *t = held;

		held = t->next;
		t->next = first;
		first = t;
		if (last == NULL)
			last = t;
	}
}

/* What a library's thread may do when its peer sends something odd */
static void *
crash(void *how)
{
	thread_serves(&crashes_for);
	if (*(const char *) how == 'a')
		abort();
	*(volatile int *) NULL = 0;
	return NULL;
}

static void
crash_if_wanted(int32_t endpoint)
{
	static char how[8];
	FILE	   *file = fopen(stuck_file, "r");
	size_t		n = file ? fread(how, 1, sizeof(how) - 1, file) : 0;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	before;

	if (file)
		fclose(file);
	how[n] = '\0';
	if (n == 0)
		return;
	crashes_for = endpoint;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before); /* as librdkafka does */
	pthread_create(&thread, NULL, crash, how);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void
null_poll(void)
{
	bool			holds = journal && access(down_file, F_OK) == 0;
	OutboxTransfer *t;
	OutboxOutcome	o = {.retry_after = -1};

	if (!holds)
		release_held();
	t = first;

	/* What 'done' starts is for the next call. */
	first = last = NULL;
	if (t && journal)
		fflush(journal);
	while (t)
	{
		OutboxTransfer *next = t->next;
		void		   *delivery = t->delivery;

		if (holds && t->held && delivery)
		{
			t->next = held;
			held = t;
			t = next;
			continue;
		}
		serves(t->stuck);
		if (t->stuck && journal)
			crash_if_wanted(t->stuck);
		while (t->stuck && journal && access(stuck_file, F_OK) == 0)
			;
		o.result = t->result;
		o.error[0] = '\0';
		if (o.result != OUTBOX_RESULT_DELIVERED)
			strlcpy(o.error, t->words, sizeof(o.error));
		t->next = unused;
		unused = t;
		if (delivery)
			done(delivery, &o);
		t = next;
	}
}

static OutboxLink *
null_open(const OutboxTarget *target, char *reason, size_t size)
{
	const char *path = strchr(strstr(target->url, "://") + 3, '/');
	OutboxLink *link = calloc(1, sizeof(*link));

	if (link == NULL || (path && strlen(path) > sizeof(link->name)))
	{
		strlcpy(reason, "the null sink has no such mode", size);
		free(link);
		return NULL;
	}
	if (path)
		strlcpy(link->name, path + 1, sizeof(link->name));
	for (size_t i = 0; i < lengthof(modes); i++)
		if (strcmp(link->name, modes[i]) == 0)
			link->mode = (Mode) i;
	if (link->mode == MODE_LACK && access(down_file, F_OK) == 0)
	{
		strlcpy(reason, "out of memory", size);
		free(link);
		return NULL;
	}
	if (journal && target->nconfig + target->ncredentials > 0)
	{
		fprintf(journal, "%s\topen", link->name);
		for (int i = 0; i < target->nconfig; i++)
			fprintf(journal, "\t%s=%s", target->config[i].name, target->config[i].value);
		for (int i = 0; i < target->ncredentials; i++)
			fprintf(journal, "\t%s=%s", target->credentials[i].name,
					target->credentials[i].value);
		fputc('\n', journal);
		fflush(journal);
	}
	link->endpoint = target->endpoint;
	links++;
	return link;
}

static OutboxLinkState
null_state(OutboxLink *link, char *reason, size_t size)
{
	if (link->mode == MODE_LOOK && journal)
	{
		fprintf(journal, "%s\tstate\n", link->name);
		fflush(journal);
	}
	if (link->mode != MODE_LINK || access(down_file, F_OK) != 0)
		return OUTBOX_LINK_UP;
	strlcpy(reason, "the null sink was told to be down", size);
	return OUTBOX_LINK_DOWN;
}

static void
null_close(OutboxLink *link)
{
	links--;
	free(link);
}

static OutboxTransfer *
null_acquire(void)
{
	OutboxTransfer *t = unused;

	if (t)
		unused = t->next;
	else
		t = malloc(sizeof(*t));
	return t;
}

static void
null_release(OutboxTransfer *t)
{
	t->next = unused;
	unused = t;
}

static void
null_start(OutboxTransfer *t, const OutboxTarget *target, OutboxLink *link,
		   const OutboxMessage *m, void *delivery)
{
	t->next = NULL;
	t->delivery = delivery;
	t->result = OUTBOX_RESULT_DELIVERED;
	t->held = false;
	t->stuck = 0;
	switch (link->mode)
	{
		case MODE_ACCEPT:
		case MODE_LOOK:
		case MODE_LACK:
			break;
		case MODE_FAIL:
			if (m->attempt == 1)
				t->result = OUTBOX_RESULT_FAILED;
			break;
		case MODE_ABORT:
		case MODE_SAY:
			t->result = OUTBOX_RESULT_ABORT;
			break;
		case MODE_LINK:
			if (access(down_file, F_OK) == 0)
				t->result = OUTBOX_RESULT_UNAVAILABLE;
			break;
		case MODE_POISON:
			if (memmem(m->body, m->body_len, "poison", 6))
				t->result = OUTBOX_RESULT_FAILED;
			break;
		case MODE_STUCK:
			t->stuck = link->endpoint;
			break;
		case MODE_HOLD:
			t->held = m->sequence % 3 != 0;
			break;
	}
	if (link->mode == MODE_SAY)
		snprintf(t->words, sizeof(t->words), "%.*s", (int) m->body_len, m->body);
	else if (t->result != OUTBOX_RESULT_DELIVERED)
		strlcpy(t->words, "the null sink does not want this event", sizeof(t->words));
	if (journal)
	{
		fprintf(journal, "%s\t%d\t%s\t%s\t%.*s\t%d\t%.*s", link->name, t->result, m->id,
				m->topic, (int) m->key_len, m->key ? m->key : "", m->attempt,
				(int) m->body_len, m->body);
		for (int i = 0; i < m->nheaders; i++)
			fprintf(journal, "\t%.*s=%.*s", (int) m->headers[i].name_len,
					m->headers[i].name, (int) m->headers[i].value_len,
					m->headers[i].value);
		fputc('\n', journal);
	}
	if (last)
		last->next = t;
	else
		first = t;
	last = t;
}

static void
null_cancel(OutboxTransfer *t)
{
	t->delivery = NULL; /* null_poll() frees it */
}

static void
null_shutdown(void)
{
	if (journal)
		fclose(journal);
}

static const OutboxTransport null_transport = {
	.abi = NULL_ABI,
	.size = sizeof(OutboxTransport),
	.name = "null",
	.memory = sizeof(OutboxTransfer),
	.config_names = config_names,
	.credential_names = credential_names,
	.check = null_check,
	.keeps_credentials = null_keeps_credentials,
	.init = null_init,
	.reload = null_reload,
	.fd = null_fd,
	.timeout = null_timeout,
	.poll = null_poll,
	.open = null_open,
	.state = null_state,
	.close = null_close,
	.acquire = null_acquire,
	.release = null_release,
	.start = null_start,
	.cancel = null_cancel,
	.shutdown = null_shutdown,
};

const OutboxTransport *
outbox_sink(void)
{
	return &null_transport;
}
