# Builds, installs and tests outbox.
#
#   make, make install, make installcheck   as with any PGXS extension
#   make demo      sets everything up and shows it at work (about half a minute)
#   make demo-follow   the shop at a server without the library, and a follower
#   make demo-kafka   the same with Apache Kafka and consumers (two minutes)
#   make test      sets everything up and runs the tests
#   make bench     measures against a bare libcurl loop
#   make help      the rest
#
# demo, test, bench, torture, fresh, packages and matrix install what they need with apt (as root or
# through sudo), so a Debian machine with nothing but make is enough.

MODULE_big = outbox
EXTENSION = outbox
DATA = $(wildcard sql/outbox--*--*.sql)
DATA_built = sql/outbox--1.0.sql
PGFILEDESC = "outbox - transactional outbox with webhook delivery"

# What a sink that is a library of its own is built against: doc/writing-a-sink.md.
HEADERS = src/transport/transport.h

# The sources are in folders: src/README.md says what each owns.  No two files
# have one name, because PGXS keeps what a file depends on by its name alone.
DIRS = src $(patsubst %/,%,$(wildcard src/*/ src/*/*/))
C_HEADERS = $(wildcard $(DIRS:%=%/*.h))
C_SOURCES = $(sort $(wildcard $(DIRS:%=%/*.c)))
OBJS = $(C_SOURCES:.c=.o)

# The install script is made of parts, in this order.
SQL_PARTS = $(patsubst %,sql/parts/%.sql,guard log emit event_types workers endpoints secrets deliveries rollups forget follow sources \
	figures views pages operators portal tenant_limits copies grants privileges dump)

REGRESS = $(patsubst test/regress/sql/%.sql,%,$(sort $(wildcard test/regress/sql/*.sql)))
REGRESS_OPTS = --inputdir=test/regress
ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(sort $(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test/isolation

PG_CONFIG ?= pg_config
ifeq ($(strip $(PG_CONFIG)),)
$(error PG_CONFIG is empty)
endif
# Makefiles of other directories get it, too, so a relative path becomes an absolute one.
override PG_CONFIG := $(if $(wildcard $(PG_CONFIG)),$(abspath $(PG_CONFIG)),$(PG_CONFIG))
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

# PostgreSQL's own headers do not pass -Wextra: as system headers they are not
# asked to.  "make WERROR=" builds with a compiler that warns about more.
WERROR ?= -Werror
PG_CPPFLAGS = -Isrc -isystem $(shell $(PG_CONFIG) --includedir-server 2>/dev/null)
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter $(WERROR)

# PGXS hands on the flags of the compiler that PostgreSQL was built with.
ifneq ($(findstring clang,$(CC)),)
PG_CFLAGS += -Wno-unknown-warning-option -Wno-ignored-optimization-argument
endif
SHLIB_LINK = $(shell curl-config --libs 2>/dev/null || echo -lcurl) -lssl -lcrypto

EXTRA_CLEAN = build

.DEFAULT_GOAL := all

ifneq ($(wildcard $(PGXS)),)

include $(PGXS)

# It searches strings for what has to be escaped.
src/base/encoding.o: CFLAGS += $(CFLAGS_VECTORIZE)

# The extension inbox has no library, and a Makefile of its own.
INBOX = inbox-all inbox-install inbox-uninstall inbox-clean
all install uninstall clean: %: inbox-%
$(INBOX): inbox-%:
	$(MAKE) -C inbox $* PG_CONFIG='$(PG_CONFIG)'
.PHONY: $(INBOX)

# With -j, both would make the same files at the same time: "all" is needed for "install" as well.
inbox-install: inbox-all
sinks-install: sinks-all

$(DATA_built): $(SQL_PARTS) Makefile
	awk 'FNR == 1 && NR > 1 { print "" } 1' $(SQL_PARTS) > $@

# PGXS tracks headers only when PostgreSQL was configured to.
$(OBJS) $(OBJS:.o=.bc): $(C_HEADERS)

# Sinks that are libraries of their own are made where pkg-config finds what they need,
# and the compiler does, which may be one for another system.
SINKS = $(if $(shell pkg-config --exists rdkafka 2>/dev/null && \
	$(CC) $(CPPFLAGS) `pkg-config --cflags rdkafka` -include librdkafka/rdkafka.h \
	-E -o /dev/null -xc /dev/null 2>/dev/null && echo yes),$(wildcard sinks/kafka)) \
	$(if $(shell curl-config --checkfor 7.87.0 2>/dev/null && echo yes),$(wildcard sinks/aws))

all: sinks-all
install: sinks-install
uninstall: sinks-uninstall
clean: sinks-clean

sinks-all sinks-install sinks-uninstall sinks-clean:
	@for sink in $(SINKS); do \
		$(MAKE) -C $$sink PG_CONFIG='$(PG_CONFIG)' $(@:sinks-%=%) || exit 1; \
	done

.PHONY: sinks-all sinks-install sinks-uninstall sinks-clean

# Unit tests need no server.  A test names what it is linked with in a comment:
# "links: src/transport/address.c src/base/names.c".
UNIT_TESTS = $(patsubst test/unit/%.c,build/unit/%,$(wildcard test/unit/test_*.c))
UNIT_NEEDS = $(wildcard test/unit/*.h sinks/*/*.[ch]) $(C_SOURCES) $(C_HEADERS)
# Some builds of PostgreSQL have libraries that no position-independent program can take.
UNIT_LIBS = -no-pie -L$(pkglibdir) -L$(libdir) -lpgcommon -lpgport $(SHLIB_LINK) -lm

unit: $(UNIT_TESTS)

build/unit/%: test/unit/%.c $(UNIT_NEEDS)
	@mkdir -p build/unit
	$(CC) -Isrc $(CPPFLAGS) -I$(includedir_server) $(CFLAGS) $(UNIT_CFLAGS) -o $@ $< \
		$(shell sed -n 's/.*links: *\([^*]*\).*/\1/p' $<) $(UNIT_LIBS)

# Fuzz targets, see test/fuzz/fuzz.h: among the unit tests with gcc, the two
# sanitizers, and a driver of our own; with libFuzzer, which is clang's, they are
# build/fuzz/*.  Sections that are not used go, with what they want of a server.
FUZZ = $(patsubst test/fuzz/%.c,%,$(filter-out test/fuzz/driver.c,$(wildcard test/fuzz/*.c)))
FUZZ_CFLAGS = -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -ffunction-sections -fdata-sections
FUZZ_LINK = $(shell sed -n 's/.*links: *\([^*]*\).*/\1/p' $<) -Wl,--gc-sections $(UNIT_LIBS)
FUZZ_NEEDS = $(wildcard test/fuzz/*.h) $(UNIT_NEEDS)

unit: $(FUZZ:%=build/unit/test_fuzz_%)
fuzz: $(FUZZ:%=build/fuzz/%)

build/unit/test_fuzz_%: test/fuzz/%.c test/fuzz/driver.c $(FUZZ_NEEDS)
	@mkdir -p build/unit
	$(CC) -Isrc $(CPPFLAGS) -I$(includedir_server) $(CFLAGS) $(FUZZ_CFLAGS) -o $@ $< test/fuzz/driver.c $(FUZZ_LINK)

build/fuzz/%: test/fuzz/%.c $(FUZZ_NEEDS)
	@mkdir -p build/fuzz
	clang -Isrc $(CPPFLAGS) -I$(includedir_server) $(PG_CFLAGS) $(FUZZ_CFLAGS) -fsanitize=fuzzer \
		-Wl,--unresolved-symbols=ignore-all -o $@ $< $(FUZZ_LINK)

else

all install installcheck uninstall clean unit fuzz:
	@echo "outbox: no pg_config with PGXS found (PG_CONFIG=$(PG_CONFIG))." >&2
	@echo "        Install PostgreSQL's server headers, or let \"make setup\" do it." >&2
	@exit 1

endif

# --- everything below sets up what it needs -------------------------------

setup:
	@test/bin/setup

test:
	@PG_CONFIG='$(PG_CONFIG)' test/bin/run

torture:
	@PG_CONFIG='$(PG_CONFIG)' test/bin/run torture

demo:
	@PG_CONFIG='$(PG_CONFIG)' demo/run

demo-follow:
	@FOLLOW=1 PG_CONFIG='$(PG_CONFIG)' demo/run

demo-kafka:
	@PG_CONFIG='$(PG_CONFIG)' demo/kafka

bench:
	@PG_CONFIG='$(PG_CONFIG)' bench/run

# Debezium, Prometheus, the receivers of doc/receiving.md, vendors' libraries, ORMs and drivers do
# what the documents say; CLIENTS='python node' runs some.  kafka-short is what of kafka takes few minutes.
CLIENTS = cdc kafka aws prometheus receivers vendors python node ruby pgbouncer go rust java
clients:
	@CLIENTS='$(subst kafka-short,kafka,$(filter-out receivers,$(CLIENTS)))' test/bin/setup clients
	@PG_CONFIG='$(PG_CONFIG)' OUTBOX_TEST_CLIENTS='$(CLIENTS)' OUTBOX_TEST_LIMIT="$${OUTBOX_TEST_LIMIT:-1800}" \
		TESTS='$(if $(filter cdc,$(CLIENTS)),documents/cdc_with_debezium) $(if $(filter kafka kafka-short,$(CLIENTS)),kafka/real_broker kafka/real_authentication) $(if $(filter kafka,$(CLIENTS)),kafka/real_to_inbox_one_effect kafka/real_crash_points kafka/real_three_nodes kafka/real_disk_full kafka/real_cluster_made_anew kafka/real_topics_made_anew) $(if $(filter aws,$(CLIENTS)),sinks/hanging_sink_alone aws/real_clients_read aws/second_stand_in aws/queues_made_anew) $(if $(filter prometheus,$(CLIENTS)),metrics/prometheus_scrapes) $(if $(filter receivers,$(CLIENTS)),receiving/in_other_languages) $(if $(filter vendors,$(CLIENTS)),signing/profiles signing/authentication) clients/orms_emit clients/through_pgbouncer' \
		test/bin/run tap

# Takes each guard out of a copy and expects a test to turn red; MUTANTS=tick
# tries some.
mutants:
	@PG_CONFIG='$(PG_CONFIG)' test/mutants/run $(MUTANTS)

# Writes down who may do what, and what was counted: read what changes before it
# is committed.
permissions counts:
	@PG_CONFIG='$(PG_CONFIG)' ACCEPT=1 TESTS='roles/as_permissions_say roles/planted_objects_not_run emit/control_characters network/forbidden_addresses hostile/receivers' test/bin/run tap

# The suite under AddressSanitizer and UBSan, a part of it under valgrind; nothing
# of it is installed.  STAGES='unit regress' and TESTS='delivery/arrives_once_committed order/hot_key_alone' run some.
asan valgrind:
	@PG_CONFIG='$(PG_CONFIG)' test/bin/checked $@ $(STAGES)

# The README's commands in minimal Debian roots, see test/bin/fresh; ROOTS='--demo
# trixie' runs some.
fresh:
	@test/bin/fresh $(ROOTS)

# Debian's packages in minimal Debian roots, see test/bin/packages; ROOTS=bookworm
# makes those of one.
packages:
	@test/bin/packages $(ROOTS)

# The archive for PGXN: what HEAD has, and nothing that was made.
dist:
	@mkdir -p build
	git archive --format=zip --prefix=outbox-$(DIST_VERSION)/ -o build/outbox-$(DIST_VERSION).zip HEAD

DIST_VERSION = $(shell sed -n 's/^   "version": "\(.*\)",$$/\1/p' META.json)

# The suite on every PostgreSQL that doc/limits.md claims, see test/bin/matrix;
# VERSIONS='--smoke 18' runs a part on some.
matrix:
	@PG_CONFIG='$(PG_CONFIG)' test/bin/matrix $(VERSIONS)

# The picture of src/README.md
folders:
	test/bin/folders >src/folders.svg

# The views of doc/sql-reference.md, from the COMMENTs in sql/parts
reference:
	test/bin/documents --write

# Layout and prose, as far as a program can count; what it cannot is in CONTRIBUTING.md.
lint:
	@test/bin/setup lint
	@test/bin/lint

# Which test watches over which promise, from the tests' first lines.
promises:
	@test/bin/promises $(TESTS)

format format-check:
	@test/bin/format $@

help:
	@echo "make                build"
	@echo "make install        install into the PostgreSQL of PG_CONFIG"
	@echo "make installcheck   pg_regress against a running server with outbox preloaded"
	@echo "make setup          install the packages that demo and test need"
	@echo "make demo           a small shop whose orders become webhooks"
	@echo "make demo-follow    the same shop at a server that loads no library, and a follower that delivers and dies"
	@echo "make demo-kafka     the same shop with Apache Kafka: each order has exactly one effect"
	@echo "make test           the tests; LONG=1 runs all, TESTS='tenants test_address' some"
	@echo "make torture        crash loops (ROUNDS), the random test, retention and the soak (MINUTES), fuzzing (FUZZ_SECONDS)"
	@echo "make bench          throughput and latency"
	@echo "make clients        Debezium, receivers, vendors' libraries, ORMs and drivers, from their registries; CLIENTS='python node' runs some"
	@echo "make mutants        takes the guards out: does a test notice? MUTANTS='tick' tries some"
	@echo "make permissions    writes test/permissions.txt and the counts in doc/security.md anew"
	@echo "make asan|valgrind  the tests under a memory checker; STAGES=unit runs some"
	@echo "make fresh          make demo and make test on machines with nothing, by debootstrap (root); ROOTS='--demo trixie' runs some"
	@echo "make packages       Debian's packages, made and installed in minimal roots (root); ROOTS=bookworm makes those of one"
	@echo "make dist           the archive for PGXN, in build/"
	@echo "make matrix         the suite on PostgreSQL 15 to 19, with assertions, under asan, and for arm64; VERSIONS='--smoke 18' runs a part on some"
	@echo "make folders        draws src/folders.svg, the folders of src/ and their includes"
	@echo "make reference      writes the views of doc/sql-reference.md, from the COMMENTs of the SQL objects"
	@echo "make lint           counts what can be counted of the rules of style, and compares documents with sources"
	@echo "make promises       prints which test watches over which promise; TESTS=tenant picks"
	@echo "make format         lay the sources out with clang-format; format-check only looks"

.PHONY: setup test torture demo demo-follow demo-kafka bench clients mutants permissions counts unit fuzz asan valgrind fresh packages dist matrix folders reference lint promises format format-check help
