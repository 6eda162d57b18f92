/*
 * watchdog.c
 *	  Owns the end of a process in which a call into a transport does not return, or a
 *	  thread of a library crashes.
 *
 * A timer ticks while there are calls.  If it finds the same call at TICKS ticks in a row,
 * its handler jumps out of the call, and the process ends with exit code 1, as after an
 * error.  So PostgreSQL does not restart.  That end is watched as a call is.  README.md says
 * why that is safe, and when it is not done.
 */
#include "base/outbox.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <sys/syscall.h>

#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"

#include "log/step.h"
#include "worker/slots.h"
#include "worker/watchdog.h"

/*
 * The call that is found at one tick, and at so many after it, has lasted 1.75 to 2 s.  A
 * process that was stopped meanwhile has missed its ticks.
 */
#define TICK_MS 250
#ifdef USE_VALGRIND
#define TICKS 140
#else
#define TICKS 7
#endif

/*
 * From then on the handler looks each TRY_MS whether the process may leave.  A call that is
 * at the same instruction so many times is blocked in the kernel.  After TRIES_MAX the
 * process leaves in any case.
 */
#define TRY_MS 1
#define SAME_PLACE 100
#define TRIES_MAX 1000

/*
 * µs of work for which the processor's time is not asked for: of one call, and of calls
 * together.  To ask for it takes as long as a twentieth of a request.
 */
#define BRIEF 100
#define BRIEF_TOGETHER 1000

/*
 * Of so many reports in a row that the library still works for the same endpoint, one reads
 * the clock.  To read it each time would take a twentieth of a request's time.
 */
#define REPORTS 8

#define SIGNAL SIGVTALRM /* PostgreSQL does not use it */

#ifdef __SANITIZE_ADDRESS__
#define CRASHES_HANDLED true /* by AddressSanitizer */
#else
#define CRASHES_HANDLED false
#endif

#define NULL_PAGES 65536 /* bytes from address 0 on, to which nothing is mapped */

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

OutboxWatchdog outbox_watchdog;
sigjmp_buf	   outbox_watchdog_way_out;

static timer_t ticker;

static pthread_t						own_thread;
static __thread const volatile int32_t *thread_endpoint; /* of a library's thread */

/* Addresses of code that may be in the middle of an allocation. */
typedef struct Range
{
	uintptr_t begin;
	uintptr_t end;
} Range;

static Range allocating[16];
static int	 nallocating;

static void
set_timer(int ms)
{
	struct itimerspec once = {.it_value = {ms / 1000, ms % 1000 * 1000000L}};

	timer_settime(ticker, 0, &once, NULL);
}

void
outbox_watchdog_start_ticking(void)
{
	outbox_watchdog.ticking = true;
	set_timer(TICK_MS);
}

/* Of this thread alone.  To ask the system for it takes longer than to read a clock. */
static int64
processor_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * USECS_PER_SEC + t.tv_nsec / 1000;
}

static TimestampTz since; /* when worked() was called last */
static int64 brief; /* µs of brief calls since the processor's time was asked for */

/*
 * Returns the µs that the process has worked since the last call.  What took long may
 * have been a wait for a processor, which is no work.  So the processor's time is asked
 * for then.  Between calls into a library there may be brief waits, which would count as
 * work, so there it is asked for after some of them, too.
 */
static int64
worked(TimestampTz now)
{
	static int64 processor_since;
	int64		 usec = Max(now - since, 0);

	since = Max(since, now); /* it was read earlier where a request begins */
	if (usec <= BRIEF && (outbox_watchdog.inside || brief <= BRIEF_TOGETHER))
		brief += usec;
	else
	{
		int64 processor = processor_time();

		usec = Min(usec, Max(processor - processor_since - brief, 0));
		processor_since = processor;
		brief = 0;
	}
	return usec;
}

int64
outbox_watchdog_work(TimestampTz *now)
{
	*now = GetCurrentTimestamp();
	return worked(*now);
}

/* Brief work in a row for one endpoint is charged together, so that it is found once. */
bool
outbox_watchdog_charge(int32 endpoint_id, TimestampTz now)
{
	static int32 charged;
	static int64 work; /* µs for that endpoint that are not charged yet */
	int64		 usec = worked(now);

	if (endpoint_id == 0)
		return false;
	if (endpoint_id != charged)
	{
		(void) outbox_slots_work(charged, work, now);
		charged = endpoint_id;
		work = 0;
	}
	work += usec;
	if (work <= BRIEF)
		return false;
	usec = work;
	work = 0;
	return outbox_slots_work(endpoint_id, usec, now);
}

bool
outbox_watchdog_worked(int32 endpoint_id)
{
	static int reports;

	if (endpoint_id == outbox_watchdog.endpoint && ++reports % REPORTS != 0)
		return false;
	return outbox_watchdog_charge(endpoint_id, GetCurrentTimestamp());
}

bool
outbox_watchdog_owes(int32 endpoint_id)
{
	return outbox_slots_owes(endpoint_id, since);
}

void
outbox_watchdog_serves(int32 endpoint_id)
{
	if (endpoint_id == outbox_watchdog.endpoint)
		return;
	(void) outbox_watchdog_charge(outbox_watchdog.endpoint, GetCurrentTimestamp());
	/* It goes on with another endpoint, so a call of the library has returned. */
	outbox_watchdog.call++;
	outbox_watchdog.endpoint = endpoint_id;
}

/* ---------------------------------------------------------- the handler */

/* Where the call was interrupted.  0: this machine's registers are not known. */
static Range
interrupted_at(const ucontext_t *context)
{
#if defined(__x86_64__)
	return (Range){(uintptr_t) context->uc_mcontext.gregs[REG_RIP],
				   (uintptr_t) context->uc_mcontext.gregs[REG_RSP]};
#elif defined(__aarch64__)
	return (Range){(uintptr_t) context->uc_mcontext.pc,
				   (uintptr_t) context->uc_mcontext.sp};
#else
	return (Range){0, 0};
#endif
}

static bool
may_be_allocating(uintptr_t code)
{
	for (int i = 0; i < nallocating; i++)
		if (code >= allocating[i].begin && code < allocating[i].end)
			return true;
	return code == 0;
}

/*
 * True if the process may leave the call here.  The end of a process allocates memory, so
 * an allocation must not be left.  An interrupted allocation is in one of the objects in
 * 'allocating', and soon is not.  A call that is blocked in the kernel is in the C
 * library as well, but stays at its place.  A lock of PostgreSQL is waited for in the end
 * of the process only: another process has it, and gives it back.
 */
static bool
may_leave(const ucontext_t *context, int tries)
{
	static Range last;
	static int	 same;
	Range		 here = interrupted_at(context);

	if (tries > 1 && here.begin == last.begin && here.end == last.end)
		same++;
	else
		same = 0;
	last = here;
	if (CritSectionCount > 0 || (MyProc && MyProc->lwWaiting))
		return false;
	return !may_be_allocating(here.begin) || same >= SAME_PLACE || tries > TRIES_MAX;
}

static void
tick(int signo, siginfo_t *info, void *context)
{
	static uint32 seen;	 /* the call at the tick before */
	static int	  ticks; /* since it was seen first */
	int			  save_errno = errno;

	if (outbox_watchdog.crashed)
	{
		/* The loop ends the process, or a call that may wait for that thread is left. */
		if (!outbox_watchdog.inside)
			SetLatch(MyLatch);
		else if (may_leave(context, ++ticks))
			siglongjmp(outbox_watchdog_way_out, 1);
		set_timer(TRY_MS);
	}
	else if (outbox_watchdog.inside && outbox_watchdog.call == seen)
	{
		/* SIGTERM ends the process within 2 s, and to leave the call may take some of it. */
		int enough = ShutdownRequestPending ? TICKS - 1 : TICKS;

		if (++ticks >= enough && may_leave(context, ticks - enough))
			siglongjmp(outbox_watchdog_way_out, 1);
		set_timer(ticks >= enough ? TRY_MS : TICK_MS);
	}
	else
	{
		/* Without a call since the tick before, the next call starts the timer. */
		outbox_watchdog.ticking = outbox_watchdog.inside || outbox_watchdog.call != seen;
		seen = outbox_watchdog.call;
		ticks = 0;
		if (outbox_watchdog.ticking)
			set_timer(TICK_MS);
	}
	errno = save_errno;
}

/* ------------------------------------------------------------- a crash */

void
outbox_watchdog_thread_serves(const volatile int32_t *endpoint)
{
	sigset_t crashes;

	thread_endpoint = endpoint;
	sigemptyset(&crashes);
	sigaddset(&crashes, SIGSEGV);
	sigaddset(&crashes, SIGABRT);
	pthread_sigmask(SIG_UNBLOCK, &crashes, NULL);
}

/*
 * A thread that has followed a NULL, or has aborted by itself, has written nothing that is
 * not its own.  So the process ends as for a call that does not return, and the server does
 * not.  The thread stops here, since it may hold locks that are its library's own.  All
 * other crashes are PostgreSQL's affair.
 */
static void
crash(int signo, siginfo_t *info, void *context)
{
	if (thread_endpoint == NULL ||
		(signo == SIGABRT ?
			 info->si_code != SI_TKILL || info->si_pid != getpid() :
			 info->si_code <= 0 || (uintptr_t) info->si_addr >= NULL_PAGES))
	{
		signal(signo, SIG_DFL);
		raise(signo);
		return;
	}
	if (outbox_watchdog.crashed_for == 0)
	{
		outbox_watchdog.crashed_for = *thread_endpoint;
		outbox_watchdog.crashed = true;
		pthread_kill(own_thread, SIGNAL);
	}
	for (;;)
		pause();
}

/* ------------------------------------------------------------- the end */

/*
 * The frames of the library, and of its callers, are gone.  They hold no LWLock and no
 * spinlock.  A transaction, if there is one, is aborted by a callback of PostgreSQL.
 *
 * The end is a call, too.  If one of its callbacks does not return, because an allocation
 * was left after all, it is left in the same way.  proc_exit() then goes on with the next
 * one, as after an error, and comes to the callbacks that give back the process's state
 * in shared memory.
 */
void
outbox_watchdog_end(uint64 tenant)
{
	static bool again;

	outbox_watchdog_enter(outbox_watchdog.endpoint);
	outbox_watchdog_start_ticking();
	error_context_stack = NULL;
	PG_exception_stack = NULL; /* an error is FATAL */
	HOLD_INTERRUPTS();
	if (!again)
		outbox_step_stuck(outbox_watchdog.endpoint, tenant);
	again = true;
	proc_exit(1);
}

/*
 * Runs after the process has left shared memory, as one of the first of the last
 * callbacks.  A library may still have threads, be in the middle of a call, or wait for a
 * name server.  The exit handlers of libraries, such as OpenSSL's, would free what these
 * threads use, or hang.  The system frees all that is left.
 */
static void
end_with_libraries(int code, Datum arg)
{
	_exit(code);
}

/* --------------------------------------------------------------- start */

/* Notes the code of the object if one of the addresses is in it. */
static int
note_object(struct dl_phdr_info *object, size_t size, void *arg)
{
	const void *const *inside = arg;
	bool			   noted = false;

	for (int k = 0; inside[k] && !noted; k++)
		for (int i = 0; i < object->dlpi_phnum; i++)
		{
			uintptr_t begin = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;

			noted = noted ||
				(object->dlpi_phdr[i].p_type == PT_LOAD &&
				 (uintptr_t) inside[k] >= begin &&
				 (uintptr_t) inside[k] < begin + object->dlpi_phdr[i].p_memsz);
		}
	for (int i = 0; noted && i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_LOAD &&
			(object->dlpi_phdr[i].p_flags & PF_X) &&
			nallocating < (int) lengthof(allocating))
		{
			Range *r = &allocating[nallocating++];

			r->begin = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
			r->end = r->begin + object->dlpi_phdr[i].p_memsz;
		}
	return 0;
}

extern void *__tls_get_addr(void *);

void
outbox_watchdog_init(void)
{
	/* PostgreSQL, the dynamic linker, the C library, and a malloc() that was preloaded */
	const void		*inside[] = {(const void *) proc_exit, (const void *) __tls_get_addr,
								 dlsym(RTLD_DEFAULT, "gnu_get_libc_version"),
								 dlsym(RTLD_DEFAULT, "malloc"), NULL};
	struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sigaction crashes = {.sa_sigaction = crash, .sa_flags = SA_SIGINFO};
	struct sigevent	 event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGNAL};

	on_proc_exit(end_with_libraries, 0);
	dl_iterate_phdr(note_object, inside);
	sigfillset(&action.sa_mask);
	crashes.sa_mask = action.sa_mask;
	own_thread = pthread_self();

	/* Threads of libraries never get the signal. */
	event.sigev_notify_thread_id = (pid_t) syscall(SYS_gettid);
	if (sigaction(SIGNAL, &action, NULL) != 0 ||
		(!CRASHES_HANDLED &&
		 (sigaction(SIGSEGV, &crashes, NULL) != 0 ||
		  sigaction(SIGABRT, &crashes, NULL) != 0)) ||
		timer_create(CLOCK_MONOTONIC, &event, &ticker) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not make the timer of the watchdog: %m"),
				 errhint("Raise the limit of pending signals (RLIMIT_SIGPENDING).")));
}
