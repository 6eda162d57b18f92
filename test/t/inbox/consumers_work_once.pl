# The consumers of doc/inbox.md do each event's work exactly once, although they are killed.
# psycopg is the real one where "make clients" has fetched it, and a stand-in otherwise.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $doc = slurp_file("$top/doc/inbox.md");
my %example = $doc =~ /^```python (\w+)\n(.*?)^```$/msg;
is(join(' ', sort keys %example), 'broker webhook', 'the document has both consumers');

# The consumer's server has nothing else of ours.
my $node = outbox_node('main');
my $consumer = PostgreSQL::Test::Cluster->new('consumer');
$consumer->init;
$consumer->start;
$consumer->safe_psql('postgres', 'CREATE EXTENSION inbox; CREATE TABLE effects (event_id text, body text)');
my ($grants) = $doc =~ /^```sql grants\n(.*?)^```$/ms;
$consumer->safe_psql('postgres', "$grants; GRANT INSERT ON effects TO consumer");

# The statements of the document, with what they yield
while ($doc =~ /^```sql\n(.*?)^```\n\n```text\n(.*?)^```$/msg)
{
	my ($code, $expected) = ($1, $2);
	my ($out) = IPC::Run::run([ 'psql', '-Xq', '-d', $consumer->connstr('postgres'), '-f', '-' ], '<', \$code, '>', \my $got, '2>&1');
	my $plain = sub { return join "\n", map { s/\s+/ /gr =~ s/^ | $//gr } grep { !/^[-+(].*[-+)]$|^$/ } split /\n/, $_[0] };
	is($plain->($got), $plain->($expected), (split /\n/, $code)[0]);
}

my $dir = PostgreSQL::Test::Utils::tempdir('consumer');
my $real = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/python';
local $ENV{PYTHONPATH} = system("PYTHONPATH='$real' python3 -c 'import psycopg' 2>/dev/null") == 0 ? $real : "$top/test/shims";
note("psycopg of $ENV{PYTHONPATH}");

# The receiver of the document dies in the middle of its work, and after the commit without an answer.
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $secret = $node->safe_psql('postgres', 'SELECT outbox.new_secret()');
my $code = $example{webhook};
$code =~ s/^(def handle.*?\n    db\.execute.*?\n)/$1    die("during the work")\n/ms or die 'handle';
$code =~ s/^(        self\.send_response)/        die("before the answer")\n$1/m or die 'answer';
append_to_file("$dir/receiver.py", <<'PYTHON' . $code);
import os, random


def die(when):
    if random.random() < 0.05 and not os.path.exists("calm"):
        with open("deaths", "a") as file:
            file.write(when + "\n")
        os._exit(9)


PYTHON
my $pid = fork // die "fork: $!";
if ($pid == 0)
{
	# A process group, so that the receiver ends with its loop
	setpgrp;
	chdir $dir or POSIX::_exit(126);
	@ENV{qw(PORT WEBHOOK_SECRET DATABASE)} = ($port, $secret, $consumer->connstr('postgres') . ' user=consumer');
	open(STDOUT, '>>', "$dir/log");
	open(STDERR, '>&', \*STDOUT);
	exec 'sh', '-c', 'while :; do python3 receiver.py; done' or POSIX::_exit(127);
}

END
{
	my $status = $?;
	kill 'KILL', -$pid if $pid;
	waitpid $pid, 0 if $pid;
	$? = $status;
}
ok((wait_until { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) ? 1 : 0 } 'the receiver listens'), 'the receiver listens')
  or diag(slurp_file("$dir/log"));

my $n = 200;
$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('consumer', 'http://127.0.0.1:$port/', topics => '{shop.*}', secret => '$secret',
	backoff_base => '50 ms', backoff_max => '100 ms', max_in_flight => 8, max_attempts => 100);
SELECT count(outbox.emit('shop.order', jsonb_build_object('n', n), key => 'k' || n % 20)) FROM generate_series(1, $n) n;
SQL
ok(wait_sql($node, "SELECT count(*) = $n FROM outbox.deliveries WHERE endpoint = 'consumer' AND status = 'delivered'"), 'all is delivered')
  or diag(slurp_file("$dir/log"));
append_to_file("$dir/calm", '');
is($consumer->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id) FROM effects'), "$n|$n", 'and each event has one effect');
my @deaths = -e "$dir/deaths" ? split /\n/, slurp_file("$dir/deaths") : ();
cmp_ok(scalar(grep { $_ eq 'before the answer' } @deaths), '>', 0, 'the receiver died after a commit, before the answer');
cmp_ok(scalar(grep { $_ eq 'during the work' } @deaths), '>', 0, 'and during the work');
note(scalar(@deaths), ' deaths');

# Everything once more
ok(wait_settled($node), 'settled');
$node->safe_psql('postgres', "SELECT outbox.replay('consumer', now() - interval '1 hour')");
ok(wait_sql($node, "SELECT count(*) >= 2 * $n FROM outbox.attempts WHERE endpoint = 'consumer' AND status_code = 204"), 'each comes again, and is answered');
is($consumer->safe_psql('postgres', 'SELECT count(*) FROM effects'), $n, 'but its work is done once');

# Signatures: those of both secrets count during a rotation, others do not
refuses_unsigned($port, 'the receiver');
$node->safe_psql('postgres', "SELECT outbox.rotate_secret('consumer')");
my $id = emit($node, 'shop.order', '{"n": 0}');
wait_status($node, $id, 'delivered', 'the former secret is enough during a rotation');
$node->safe_psql('postgres', "SELECT outbox.alter_endpoint('consumer', max_attempts => 1);"
	  . " SELECT outbox.rotate_secret('consumer', grace => '0')");
$id = emit($node, 'shop.order', '{"n": 0}');
ok(wait_sql($node, "SELECT last_status_code = 401 FROM outbox.dead_letters WHERE event_id = '$id'"), 'and not after it');

# The consumer of a broker, which sees work that fails, and repetitions
append_to_file("$dir/broker.py", $example{broker} . <<'PYTHON');


import os
import types

import psycopg

acknowledged = []
fails = {"3"}


def message(id):
    return types.SimpleNamespace(id=id, ack=lambda: acknowledged.append(id))


def handle(db, message):
    db.execute("INSERT INTO effects (event_id, body) VALUES (%s, 'broker')", (message.id,))
    if message.id in fails:
        fails.remove(message.id)
        raise RuntimeError("not yet")


waiting = [message(id) for id in ["1", "2", "2", "3", "1", "4"]]
with psycopg.connect(os.environ["DATABASE"], autocommit=True) as db:
    while waiting:
        try:
            for m in waiting[:]:
                consume(db, [m], handle)
                waiting.remove(m)
        except RuntimeError:
            pass
print(" ".join(acknowledged))
PYTHON
my $said = do
{
	local $ENV{DATABASE} = $consumer->connstr('postgres') . ' user=consumer';
	qx{cd '$dir' && python3 broker.py 2>&1};
};
is($said, "1 2 2 3 1 4\n", 'each message is acknowledged');
is($consumer->safe_psql('postgres', "SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM effects WHERE body = 'broker'"), '1 2 3 4', 'and has one effect');
$node->stop;
$consumer->stop;
done_testing();
