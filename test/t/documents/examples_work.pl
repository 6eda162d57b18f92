# Every example in README.md and doc/*.md works, and every list in them is complete.
# (That links lead somewhere, and what is named exists, is read by test/bin/documents for lint.)
#
# A fenced block is run according to its language:
#   sql               must succeed
#   sql error=42501   must fail with this SQLSTATE
#   text              behind a block of sql: what that yields, sooner or later
#                     (it is asked again until it does); elsewhere a drawing
#   conf              is appended to postgresql.conf, and the server restarted
#   python            is a receiver, which is started and sent an event
#   http              a request: the receiver has seen one with these headers
#   sql copy          is run by copies/held_until_adopted, in a copy of a database
#   … driver          is run by secrets/as_parameters, with the driver of that language
#   console           is not run, and there may be a few
# The examples of doc/receiving.md, doc/runbook.md, doc/cdc.md, doc/orm.md,
# doc/testing.md, doc/inbox.md and doc/follow.md have tests of their own: receiving/vectors_and_batches, documents/runbook_works,
# documents/cdc_with_debezium, documents/orm_is_programs, documents/testing_examples, inbox/consumers_work_once and follow/document_word_for_word.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# In the order in which they are read: the tutorial continues the README.
my @files = map { substr($_, length("$top/")) } sort glob("$top/doc/*.md");
@files = ('README.md', 'doc/tutorial.md', grep { $_ ne 'doc/tutorial.md' } @files);
my %text = map { $_ => slurp_file("$top/$_") } @files;
my $receiver = OutboxTest::Receiver->new('main');
my $python_port = PostgreSQL::Test::Cluster::get_free_port();
my $max_console = 5;
my $max_words = 1500;    # of README.md

# The key file that doc/security.md tells its reader to make
my $key_file = PostgreSQL::Test::Utils::tempdir('keys') . '/outbox.keys';
system("umask 077; openssl rand -base64 32 > '$key_file'") == 0 or die 'openssl';

# [ line, language, code ] of each block of a document
sub blocks
{
	my ($text) = @_;
	my (@blocks, $block);
	my $line = 0;

	foreach (split /\n/, $text, -1)
	{
		$line++;
		if (!$block && /^```(.*)/) { $block = [ $line, $1, '' ] }
		elsif ($block && /^```$/) { push @blocks, $block; undef $block }
		elsif ($block) { $block->[2] .= "$_\n" }
	}
	die "a block that begins in line $block->[0] does not end\n" if $block;
	return @blocks;
}

# Ports that the documents use, as they are here.
sub here
{
	my ($code) = @_;

	$code =~ s/127\.0\.0\.1:8080/127.0.0.1:$receiver->{port}/g;
	$code =~ s/\b8081\b/$python_port/g;
	$code =~ s{/etc/outbox\.keys}{$key_file}g;
	return $code;
}

# What psql prints, without what is a matter of layout.
sub plain
{
	my ($output) = @_;
	my @lines = grep { !/^[-+]*$/ } split /\n/, $output;

	s/^\s+|\s+$//g, s/\s+/ /g foreach @lines;
	return join "\n", @lines;
}

# A server as a reader of the README finds it at first.
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->append_conf('postgresql.conf', "log_statement = none\n");
$node->start;

my %psql = (on_error_stop => 1, extra_params => ['-q']);
my $console = 0;

sub run_sql
{
	my ($name, $code) = @_;

	if ($code =~ /"ed25519"/ && !has_openssl($node))
	{
		diag("NOT TESTED: $name, because this PostgreSQL was built without OpenSSL");
		return;
	}
	my ($rc, $out, $err) = $node->psql('postgres', here($code), %psql);

	is($rc, 0, $name) or diag($err);
	return;
}

sub run_failing_sql
{
	my ($name, $code, $sqlstate) = @_;
	my ($rc, $out, $err) =
	  $node->psql('postgres', "\\set VERBOSITY verbose\n" . here($code), %psql);

	isnt($rc, 0, "$name fails");
	like($err, qr/ERROR:  \Q$sqlstate\E:/, "$name: $sqlstate");
	like($err, qr/^HINT:/m, "$name: with a hint") unless $sqlstate =~ /^42501$/;
	return;
}

sub compare_output
{
	my ($name, $code, $expected) = @_;
	my $last = '';
	my $psql = [ 'psql', '-XqP', 'pager=off', '-d', $node->connstr('postgres'), '-f', '-' ];

	my $same = wait_until
	{
		IPC::Run::run($psql, '<', \here($code), '>', \$last, '2>&1');
		plain($last) eq plain($expected);
	}
	"$name: the output";
	ok($same, $name) or diag("expected:\n", $expected, "got:\n", $last);
	return;
}

sub run_python
{
	my ($name, $code) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir('python') . '/receiver.py';
	my $secret = $node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('python', 'http://127.0.0.1:$python_port/', topics => '{python.*}',
	backoff_base => '50 ms', backoff_max => '100 ms') \\g /dev/null
SELECT outbox.endpoint_secret('python')
SQL

	append_to_file($file, here($code));
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		$ENV{WEBHOOK_SECRET} = $secret;
		open(STDOUT, '>', '/dev/null');
		open(STDERR, '>', '/dev/null');
		exec 'python3', $file or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	my $id = emit($node, 'python.one', '{"n": 1}');
	wait_status($node, $id, 'delivered', "$name: takes what is signed");

	refuses_unsigned($python_port, $name);

	# With another secret it refuses.
	$node->safe_psql('postgres',
		"SELECT outbox.alter_endpoint('python', secret => 'whsec_' || encode('" . 'x' x 32 . "', 'base64'))");
	$id = emit($node, 'python.two', '{"n": 2}');
	ok( wait_sql(
			$node, "SELECT last_status_code = 401 FROM outbox.deliveries WHERE event_id = '$id'"),
		"$name: refuses what is not");
	$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('python', discard => true)");
	return;
}

# The request of an example has the headers that are shown, and no others.
sub compare_request
{
	my ($name, $code) = @_;
	my ($head) = split /\n\n/, $code;
	my ($first, @lines) = split /\n/, $head;
	my ($path) = $first =~ m{^POST (\S+) HTTP/1.1$};
	my ($request) = $receiver->wait_for(1, path => $path);
	my %shown = map { /^([^:]+): (.*)$/; (lc $1 => $2) } @lines;

	is_deeply(
		[ sort keys %{ $request->{headers} } ],
		[ sort keys %shown ],
		"$name: the headers");
	foreach my $header (qw(accept content-type user-agent outbox-topic outbox-type outbox-key x-tenant))
	{
		is($request->{headers}{$header}, $shown{$header}, "$name: $header");
	}
	my ($body) = $code =~ /\n\n(.*)\n/;
	$body =~ s/"timestamp":"[^"]*"/"timestamp":""/;
	(my $got = $request->{body}) =~ s/"timestamp":"[^"]*"/"timestamp":""/;
	is($got, $body, "$name: the body");
	is(length($request->{body}), $shown{'content-length'}, "$name: its length");
	return;
}

foreach my $file (@files)
{
	my $previous;

	next if $file =~ m{^doc/(?:receiving|runbook|cdc|orm|testing|inbox|follow)\.md$};
	foreach my $block (blocks($text{$file}))
	{
		my ($line, $language, $code) = @$block;
		my $name = "$file:$line";

		if ($language eq 'sql') { run_sql($name, $code) }
		elsif ($language =~ /^sql error=(\w{5})$/) { run_failing_sql($name, $code, $1) }
		elsif ($language eq 'text')
		{
			compare_output($name, $previous->[2], $code)
			  if $previous && $previous->[1] eq 'sql' && $previous->[3] == $line - 1;
		}
		elsif ($language eq 'conf')
		{
			$node->append_conf('postgresql.conf', here($code));
			$node->restart;
			pass("$name: the server starts");
		}
		elsif ($language eq 'python') { run_python($name, $code) }
		elsif ($language eq 'http') { compare_request($name, $code) }
		elsif ($language =~ /^sql copy$| driver$/) { next }
		elsif ($language eq 'console') { $console++ }
		else { fail("$name: it is not known how to run \"$language\"") }

		# the line of its end
		$previous = [ @$block, $line + 1 + ($code =~ tr/\n//) ];
	}
}
cmp_ok($console, '<=', $max_console, 'few examples are not run');

# The roles of doc/security.md can do what they are for, and nothing else
sub as_role
{
	my ($role, $sql, $expected, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "BEGIN; SET ROLE $role; $sql; ROLLBACK", %psql);

	if ($expected) { is($rc, 0, $name) or diag($err) }
	else { like($err, qr/permission denied/, $name) }
	return;
}
my @emits = (
	"SELECT outbox.emit('role.one', '{}')",
	"SELECT outbox.emit('role.one', '{}'::json)",
	"SELECT outbox.emit('role.one', '{}'::jsonb, key => 'a', type => 'b', headers => '{}', expires_at => now())",
	"SELECT outbox.emit_bytes('role.one', '', 'text/plain')",
	"SELECT outbox.emit('role.one', '{}', key => 7), outbox.emit_bytes('role.one', '', 'text/plain', gen_random_uuid())",
	"INSERT INTO outbox.outgoing (topic, payload) VALUES ('role.one', '{}') RETURNING *",
	"INSERT INTO outbox.events (id, topic, type, key, expires_at, headers, body, content_type)"
	  . " VALUES (NULL, 'role.one', NULL, NULL, NULL, NULL, '', 'text/plain')");
my @watches = map { "SELECT * FROM outbox.$_" } qw(status stats deliveries workers replay_progress event_types);
my @reads = map { "SELECT * FROM outbox.$_" } qw(endpoints dead_letters attempts all_events scheduled);
my $event = $node->safe_psql('postgres', 'SELECT id FROM outbox.events LIMIT 1');
my @operations = (
	"SELECT outbox.create_endpoint('a', 'https://a.example/')",
	map({ "SELECT outbox.$_('billing')" }
		qw(pause_endpoint resume_endpoint rotate_secret endpoint_secret retry discard send_test)),
	"SELECT outbox.alter_endpoint('billing', url => 'https://a.example/', secret => '"
	  . 'whsec_' . 'A' x 40 . "')",
	"SELECT outbox.seek_endpoint('billing', 'now')",
	"SELECT outbox.cancel('$event')",
	"SELECT outbox.send_test('billing', 'a', '{}')",
	"SELECT outbox.set_retention(events => '1 day', reset => '{attempts}')",
	"SELECT outbox.set_event_type('a.b', 'A thing.'), outbox.drop_event_type('a.b')",
	"SELECT outbox.wait_for('$event')",
	"SELECT outbox.replay('billing', now() - interval '1 hour')",
	"SELECT outbox.drop_endpoint('billing', discard => true)");
my @others = (
	map({ "SELECT * FROM outbox.$_" } qw(events endpoint_secrets endpoint_settings)),
	"UPDATE outbox.endpoint_settings SET url = ''",
	"DELETE FROM outbox.events",
	"INSERT INTO outbox.events (topic, payload, seq) VALUES ('a', '{}', 1)",
	"TRUNCATE outbox.events");

$node->safe_psql('postgres', 'CREATE ROLE nobody');
as_role('app', $_, 1, "app: $_") foreach @emits;
as_role('app', $_, 0, "app, refused: $_") foreach @watches, @reads, @operations, @others;
as_role('watcher', $_, 1, "watcher: $_") foreach @watches;
as_role('watcher', $_, 0, "watcher, refused: $_") foreach @emits, @reads, @operations, @others;
as_role('operator', $_, 1, "operator: $_") foreach @watches, @reads, @operations;
as_role('operator', $_, 0, "operator, refused: $_") foreach @emits, @others;
as_role('nobody', $_, 0, "a role without grants, refused: $_")
  foreach @emits, @watches, @reads, @operations, @others;

# Lists
sub column
{
	return split /\n/, $node->safe_psql('postgres', $_[0]);
}

foreach my $setting (column("SELECT format('%s|%s|%s', name, setting, unit) FROM pg_settings"
	  . " WHERE name LIKE 'outbox.%'"))
{
	my ($name, $value, $unit) = split /\|/, $setting, -1;

	# What the examples have set
	$value = $node->safe_psql('postgres',
		"SELECT boot_val FROM pg_settings WHERE name = '$name'");
	my ($row) = $text{'doc/settings.md'} =~ /^(\| `\Q$name\E` \|.*)$/m;
	my (undef, undef, $default, $documented_unit) = split /\s*\|\s*/, $row // '||||';
	$default =~ s/[`']//g;
	is($default, $value, "$name in doc/settings.md");
	is($documented_unit, $unit, "its unit");
}
foreach my $name ($text{'doc/settings.md'} =~ /^\| `(outbox\.[a-z_]+)` \| [^|]* \| [^|]* \| [^|]* \|$/mg)
{
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name = '$name'"),
		'1', "$name exists");
}

my $reference = $text{'doc/sql-reference.md'};
my $schema = "'outbox'::regnamespace";
# A function or a view that is no interface is not in the reference.
my @internal = qw(
  adopted_status ask_source attempt_cause audit_endpoint change_endpoint check_event check_listed check_options
  bind_emit check_portal check_portal_numbers check_portal_setting check_role check_settings check_tenant check_topic
  check_topics claim_log close_log command content_files copy_source create_source_slot credential_names current_epoch
  current_piece default_settings delivery_attempts drop_source_slot drop_subscription endpoint_changed endpoint_figures
  endpoint_positions endpoint_public_key endpoint_stats events_taken farthest_behind figures_of
  figures_shown figures_sum fill_id find_endpoint follow_anew forget_at_sources forget_events forgets forgotten_at
  header_object insert_outgoing is_asked is_pending keep_sources keeps_credentials kept_for lock_endpoint lock_source
  lock_tenant log_deliveries log_owner log_size_now log_xid make_room metric_names metric_series new_secret newest_position
  next_seq note_change note_inactive note_missed order_key origins_changed page_bound page_endpoints page_rows
  parked_counts pending_seqs portal_change portal_cipher portal_cursor portal_hint portal_key
  portal_noted portal_own portal_reason portal_settings portal_spend portal_spend_challenges position_now probe refuse_copy refuse_snapshot
  refuse_subscribed request_of require_endpoint require_library resolve_start retention_held run_attempts same_history
  scheduled_now schema_problem seal shared_rows shown shown_request sink_properties size_now skip_replicated source_of
  start_replay step_holds store_credentials stored_credentials take take_over taken_to unseal
  wake_launcher wake_workers worker_slots);
my $not_promised = join '|', @internal;
foreach my $name (column("SELECT proname FROM pg_proc WHERE pronamespace = $schema UNION SELECT relname FROM pg_class WHERE relnamespace = $schema AND relkind = 'v'"))
{
	like($reference, qr/`(?:outbox\.)?\Q$name\E`|^outbox\.\Q$name\E\(/m, "$name in the reference") unless $name =~ /^(?:$not_promised)$/;
}
foreach my $file (@files)
{
	is(join(' ', $text{$file} =~ /\boutbox\.($not_promised)\b/g), '', "$file uses nothing internal") unless $file =~ /sql-reference/;
}
foreach my $argument (column(
		"SELECT DISTINCT unnest(proargnames[1:pronargs]) FROM pg_proc WHERE pronamespace = $schema"
		  . " AND proname IN ('emit', 'emit_bytes', 'create_endpoint', 'alter_endpoint', 'drop_endpoint',"
		  . " 'pause_endpoint', 'resume_endpoint', 'seek_endpoint', 'rotate_secret', 'retry', 'discard', 'cancel',"
		  . " 'replay', 'resend', 'wait_for', 'send_test', 'set_retention', 'set_event_type', 'drop_event_type', 'topic_in', 'filter_matches')"))
{
	like($reference, qr/\b\Q$argument\E\b/, "argument $argument in the reference");
}
foreach my $row (
	column("SELECT p.name || '|' || coalesce(p.def, '')"
		  . " FROM pg_proc f, LATERAL (SELECT unnest(proargnames) AS name,"
		  . " pg_get_function_arg_default(oid, generate_series(1, pronargs)) AS def) p"
		  . " WHERE f.oid = (SELECT max(oid) FROM pg_proc WHERE pronamespace = $schema AND proname = 'create_endpoint')"))
{
	my ($name, $default) = split /\|/, $row, 2;

	like($reference, qr/^\| `\Q$name\E` \|/m, "create_endpoint: $name");
}

# A publication FOR ALL TABLES has them, too.  Two tables are always empty.
is( $node->safe_psql('postgres',
		"SELECT string_agg(c.oid::regclass::text, ' ') FROM pg_class c WHERE relnamespace = 'outbox'::regnamespace"
		  . " AND relkind IN ('r', 'p') AND relname NOT IN ('emitted', 'deferred') AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND indisprimary)"),
	'', 'every table has a primary key');

# Views that are an interface: each column has a COMMENT, from which test/bin/documents has made the lists of the reference
my %columns;
foreach my $row (
	column("SELECT c.relname || '|' || a.attname || '|' || coalesce(col_description(c.oid, a.attnum), '')"
		  . " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
		  . " WHERE c.relnamespace = $schema AND c.relkind = 'v' AND a.attnum > 0"
		  . " ORDER BY c.relname, a.attnum"))
{
	my ($view, $name, $comment) = split /\|/, $row, 3;

	isnt($comment, '', "$view.$name has a comment") unless $view =~ /^(?:$not_promised)$/;
	push @{ $columns{$view} }, $name;
}
while ($reference =~ /^<!-- from the COMMENTs of (\w+): .*?$(.*?)^<!-- end -->$/gms)
{
	my ($view, $list) = ($1, $2);

	is(join(' ', $list =~ /^- `(\w+)`: /mg), join(' ', @{ $columns{$view} }), "the columns of $view in the reference")
	  if $columns{$view};
}
is( join(' ', column("SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = $schema"
			  . " AND obj_description(oid, 'pg_proc') IS NULL")),
	'', 'every function has a comment');
is( join(' ', column("SELECT oid::regclass FROM pg_class WHERE relnamespace = $schema"
			  . " AND relkind IN ('r', 'p', 'v') AND obj_description(oid, 'pg_class') IS NULL")),
	'', 'every table and view has a comment');

# The schedule of retries: half of the bound and a twentieth, on average
my $sum = 0;
foreach my $n (1 .. 13)
{
	my $bound = $n == 13 ? 3600 : 2**($n - 1);
	my ($row) = $text{'doc/guarantees.md'} =~ /^\| $n (?:and each further one )?\| (.*)$/m;
	my @cells = map { s/ s$//r } split / *\| */, $row // '';

	$sum += 0.55 * $bound;
	cmp_ok(abs($cells[0] - 0.55 * $bound), '<=', 0.051, "retry $n: on average");
	is($cells[1], $bound, "retry $n: at most");
	cmp_ok(abs($cells[2] - $sum), '<=', 0.1, "retry $n: since the first attempt") if $n < 13;
}

# The reasons by which doc/monitoring.md tells states apart are ones that can come
my $sources = join '', map { slurp_file($_) } glob("$top/src/*/*.[ch] $top/src/*/*/*.[ch] $top/sql/parts/*.sql");
my ($tables) = $text{'doc/monitoring.md'} =~ /^## When nothing is sent\n(.*?)^## /ms;
my @reasons;

$sources =~ s/(["'])\s*\n\s*\1//g;
foreach ($tables =~ /^\| (.+?) \|/gm)
{
	next if /^(?:---|`state`|`reason`)|^anything else| otherwise$/;
	push @reasons, map { split /…|; or no reason/ } s/^`\w+`(?:, |$)// ? s/`//gr : s/\(`.*//r =~ /`(.+?)`/g;
}
foreach my $reason (map { s/^[ ,:]+|[ :]+$//gr } @reasons)
{
	my $format = $reason =~ s/\d+/%d/gr;
	ok($sources =~ /\Q$reason\E|\Q$format\E/, "reason: $reason");
}

# The README is short, and leads to every document
cmp_ok(scalar(split ' ', $text{'README.md'}), '<=', $max_words, 'the README is short');
foreach my $file (grep { $_ ne 'README.md' } @files)
{
	like($text{'README.md'}, qr/\]\(\Q$file\E[)#]/, "$file is linked from the README");
}

# The plots are of the figures that are written down, and so is the text
my $plots = PostgreSQL::Test::Utils::tempdir('plots');
is(system('python3', "$top/bench/plot.py", '--into', $plots), 0, 'bench/plot.py draws');
foreach my $plot (glob("$plots/*.svg"))
{
	my ($name) = $plot =~ m{([^/]+)$};
	is(slurp_file("$top/doc/$name"), slurp_file($plot), "doc/$name is drawn from bench/figures.json");
}
my $figures = decode_json(slurp_file("$top/bench/figures.json"))->{figures};
foreach my $row (@{ $figures->{throughput} })
{
	foreach my $name (qw(outbox loop))
	{
		my @runs = sort { $a <=> $b } @{ $row->{$name} };
		my $median = sprintf('%.0f', $runs[ @runs / 2 ]);
		1 while $median =~ s/^(\d+)(\d{3})/$1,$2/;
		like($text{$_}, qr{^\| \Q$row->{what}\E \|.* \Q$median\E/s}m, "$_: $row->{what}, $name: $median")
		  foreach 'README.md', 'doc/performance.md';
	}
}
foreach my $rate (qw(100 1000))
{
	foreach my $point (grep { $_->[0] == 50 || $_->[0] == 99 } @{ $figures->{latency}{$rate} })
	{
		my $ms = sprintf('%.2f ms', $point->[1]);
		my $row = $rate == 100 ? qr/^\| 100\/s \|/m : qr/^\| 1,000\/s \|/m;
		like($text{'doc/performance.md'}, qr/$row.* \Q$ms\E/, "doc/performance.md: $rate/s, p$point->[0]: $ms");
		like($text{'README.md'}, qr/^From emit.* p$point->[0] \Q$ms\E/m, "README.md: p$point->[0]: $ms") if $rate == 1000;
	}
}

$node->stop;
done_testing();
