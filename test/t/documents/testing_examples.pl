# The examples of doc/testing.md work with and without preloading, and most with sql/source.sql.
# Without shared_preload_libraries, everything but delivery works.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $text = slurp_file("$top/doc/testing.md");
my @blocks;    # [ language, code, chapter ]
my $chapter = '';
while ($text =~ /^(?:## (.*)|```(.+)\n((?s).*?)^```)$/mg)
{
	if (defined $1) { $chapter = $1 }
	else { push @blocks, [ $2, $3, $chapter ] }
}
cmp_ok(scalar @blocks, '>', 8, 'doc/testing.md has examples');

my $receiver = OutboxTest::Receiver->new('main');
my $preloaded = outbox_node('preloaded', extension => 0);
my $plain = PostgreSQL::Test::Cluster->new('plain');
$plain->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$plain->append_conf('postgresql.conf', <<'CONF');
max_prepared_transactions = 2
outbox.retention = '1 h'
outbox.allowed_networks = '127.0.0.1/32'
CONF
$plain->start;
my $source = PostgreSQL::Test::Cluster->new('source');
$source->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$source->start;

sub plain_lines
{
	my @lines = grep { !/^[-+]*$/ } split /\n/, $_[0];

	s/^\s+|\s+$//g, s/\s+/ /g foreach @lines;
	return join "\n", @lines;
}

# Every example that the server can run, in the order of the page
sub run_page
{
	my ($node, %has) = @_;
	my ($name, $last) = ($node->name, '');

	foreach my $block (@blocks)
	{
		my ($language, $code, $of) = @$block;

		next if $language eq 'sql preloaded' && !$has{worker};
		if ($language =~ /^sql/)
		{
			next if $code =~ /CREATE EXTENSION/ && $has{source};
			$code =~ s/127\.0\.0\.1:8080/127.0.0.1:$receiver->{port}/;
			my $ok = IPC::Run::run([ 'psql', '-XqP', 'pager=off', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', '-' ],
				'<', \$code, '>', \$last, '2>', \my $err);
			ok($ok, "$name: $of: " . substr($code, 0, 40) =~ s/\n.*//sr) or diag($err);
			like($err, qr/WARNING:.*not preloaded/, "$name: it warns") if $code =~ /CREATE EXTENSION/ && !$has{worker};
		}
		elsif ($language eq 'text') { is(plain_lines($last), plain_lines($code), "$name: $of: the output") }
		elsif ($language eq 'console')
		{
			next unless $has{source};
			my ($command) = $code =~ /^\$ (psql .*)$/ or die $code;
			$command =~ s/-d shop_test/-d '@{[ $node->connstr('postgres') ]}'/;
			is(system("cd '$top' && $command -q"), 0, "$name: $of: $command");
		}
		else { fail("it is not known how to run \"$language\"") }
	}
	is($node->safe_psql('postgres', "SET ROLE shop; BEGIN; SELECT outbox.emit('order.sent', '{}') \\g /dev/null\nSELECT topic FROM outbox.outgoing"),
		'order.sent', "$name: the page's role emits, and sees what it has emitted");
	return;
}

# sql/source.sql comes last on the page, and is needed first.
push @blocks, shift @blocks while $blocks[0][0] ne 'console';
run_page($source, source => 1);
push @blocks, shift @blocks;
run_page($plain);
run_page($preloaded, worker => 1);

# ---- what the table says of a server without preloading

sub ask { return $plain->safe_psql('postgres', $_[0]) }

is(ask("SELECT state FROM outbox.status"), 'not_preloaded', 'outbox.status');
is(ask("SELECT outbox.current_epoch() > 0; SHOW outbox.retention") =~ s/.*\n//sr, '1h', 'a setting of postgresql.conf');
ask("SELECT outbox.create_endpoint('mail', '" . $receiver->url('/ok/mail') . "', topics => '{mail.*}')");
my $event = emit($plain, 'mail.sent', '{"n": 1}', "key => 'k', dedup_key => 'once'");
is(emit($plain, 'mail.sent', '{"n": 2}', "dedup_key => 'once'"), $event, 'dedup_key');
my $later = emit($plain, 'mail.sent', '{"n": 3}', "deliver_at => now() + interval '1 h'");
is(ask("SELECT endpoint || ' ' || status FROM outbox.deliveries WHERE event_id = '$event'"), 'mail pending', 'outbox.deliveries');
is(ask("SELECT state || ' ' || pending FROM outbox.stats WHERE endpoint = 'mail'"), 'active 1', 'outbox.stats');
is(ask("SELECT outbox.wait_for('$event', '100 ms')"), 'f', 'wait_for returns');
is(ask("SELECT outbox.cancel('$later')"), 't', 'cancel takes a scheduled event back');
ask($_) foreach
  "SELECT outbox.alter_endpoint('mail', max_in_flight => 2)",
  "SELECT outbox.rotate_secret('mail')",
  "SELECT outbox.pause_endpoint('mail')",
  "SELECT outbox.resume_endpoint('mail')",
  "SELECT outbox.send_test('mail')",
  "SELECT outbox.seek_endpoint('mail', 'beginning')",
  "SELECT outbox.replay('mail', now() - interval '1 hour')",
  "SELECT outbox.retry('mail')",
  "SELECT outbox.discard('mail')",
  "SELECT count(*) FROM outbox.workers",
  "SELECT count(*) FROM outbox.held_steps",
  "SELECT count(*) FROM outbox.endpoints",
  "BEGIN; SELECT outbox.emit('mail.sent', '{}'); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'";
pass('everything that is for a worker can be called');
is(ask("SELECT outbox.cancel('$event')"), 't', 'cancel, and a worker would do it');

# A copy of it, and the end
ask("CREATE DATABASE copy TEMPLATE postgres");
$plain->safe_psql('copy', "BEGIN; SELECT outbox.emit('mail.sent', '{}')");
is($plain->safe_psql('copy', "SELECT state FROM outbox.status"), 'not_preloaded', 'a template copy');
$plain->safe_psql('copy', "SELECT outbox.drop_endpoint('mail', discard => true); DROP EXTENSION outbox");
ask("DROP DATABASE copy");

# With a worker later, what waited is sent
$plain->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'\n");
$plain->restart;
$event = emit($plain, 'mail.sent', '{"n": 4}');
$receiver->wait_delivered(1, path => '/ok/mail', id => $event);
pass('once it is preloaded, it delivers');

# ---- many databases on a server that preloads it

my $emits = "BEGIN; SELECT outbox.emit('a', '1') \\g /dev/null\nSELECT count(*) FROM outbox.outgoing";
is($preloaded->safe_psql('shop_test_1', $emits), '1', 'a copy of a template without endpoints emits');
is($preloaded->safe_psql('shop_test_1', 'SELECT count(*) FROM outbox.endpoints'), '0', 'and has nowhere to send to');
$preloaded->safe_psql('template1', "CREATE DATABASE test_$_ TEMPLATE postgres") foreach 1 .. 10;
my $told = wait_until
{
	!grep { $preloaded->safe_psql("test_$_", 'SELECT state FROM outbox.status') ne 'held' } 1 .. 10;
}
'each is held, since a held one leaves its process to the next';
ok($told, 'more databases than workers: each says why it does not deliver');
is($preloaded->safe_psql("test_$_", $emits), '1', "test_$_ emits") foreach 1, 10;
done_testing();
