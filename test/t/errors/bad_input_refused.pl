# Input that makes no sense is refused at once: the error names the value, the hint what is allowed.
# Every function that takes such a value is tried.  Odd values that make sense are accepted.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $url = 'https://example.com/';
my $id = '00000000-0000-4000-8000-000000000000';

# The call fails with this SQLSTATE.  The message names the value, the hint has
# what is to be used instead.
sub refused
{
	my ($call, $sqlstate, $value, $hint) = @_;
	my ($rc, undef, $err) =
	  $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.$call", on_error_stop => 1);
	my ($message) = $err =~ /ERROR:  (?:\w{5}): (.*)/;
	my ($advice) = $err =~ /^HINT:  (.*)/m;
	my $named = defined $message && ($message =~ /\Q$value\E/
		  || ($err =~ /^DETAIL:  (.*)/m && $1 =~ /\Q$value\E/));

	ok( $rc != 0 && $err =~ /ERROR:  $sqlstate:/ && $named && ($advice // '') =~ $hint,
		length($call) > 100 ? substr($call, 0, 100) . ' …' : $call)
	  or diag($rc == 0 ? 'accepted' : $err);
	return;
}

sub accepted
{
	my ($call) = @_;
	my ($rc, undef, $err) =
	  $node->psql('postgres', "BEGIN; SELECT outbox.$call; ROLLBACK", on_error_stop => 1);

	is($rc, 0, "accepted: $call") or diag($err);
	return;
}

ask("SELECT outbox.create_endpoint('e', '$url', topics => '{none}');"
	  . " SELECT outbox.pause_endpoint('e')");

# Settings of endpoints: by create_endpoint() and by alter_endpoint()
my @settings = (
	[ q{ordering => 'fifo'}, 'fifo', qr/'key', 'none' or 'strict'/ ],
	[ q{ordering => ''}, '""', qr/'key', 'none' or 'strict'/ ],
	[ q{ordering => 'KEY'}, 'KEY', qr/'key', 'none' or 'strict'/ ],
	[ q{on_exhausted => 'drop'}, 'drop', qr/'skip' or 'block'/ ],
	[ q{format => 'xml'}, 'xml', qr/'standard', 'raw', 'cloudevents' or 'cloudevents-binary'/ ],
	[ q{max_in_flight => 0}, '0', qr/1 to 1024/ ],
	[ q{max_in_flight => -1}, '-1', qr/1 to 1024/ ],
	[ q{max_in_flight => 1025}, '1025', qr/1 to 1024/ ],
	map({ [ "rate_limit => '$_'", $_, qr/0\.0001 to 1000000/ ] } qw(0 -0.5 NaN Infinity 1e-30 9.9e-05)),
	[ q{max_attempts => 0}, '0', qr/at least 1/ ],
	[ q{max_attempts => -3}, '-3', qr/at least 1/ ],
	map({
			my $name = $_;
			map { [ "$name => '$_'", $_ eq '0' ? '00:00:00' : $_ =~ s/ s$//r, qr/^Use (?:1 ms|at least)/ ] }
			  ('0', '-00:00:01', '100 years');
		} qw(timeout connect_timeout max_age backoff_base backoff_max)),
	[ q{backoff_base => '2 h', backoff_max => '1 h'}, '01:00:00', qr/at least backoff_base \(02:00:00\)/ ],
	[ q{batch_size => 0}, '0', qr/^Use 1/ ],
	[ q{batch_size => -1}, '-1', qr/^Use 1/ ],
	[ q{batch_size => 2, format => 'raw'}, 'raw', qr/'standard' or 'cloudevents'/ ],
	[ q{batch_size => 2, format => 'cloudevents-binary'}, 'cloudevents-binary', qr/'standard' or 'cloudevents'/ ],
	[ q{batch_wait => '-1 s'}, '-00:00:01', qr/^Use 0/ ],
	[ q{batch_wait => '1 s'}, '00:00:01', qr/batch_wait 0, or a batch_size of 2 to 1000/ ],
	[ q{topics => '{}'}, 'empty', qr/at least one pattern.*"\*"/ ],
	[ q{topics => '{{a,b},{c,d}}'}, '2 dimensions', qr/one list/ ],
	[ q{topics => '{order.}'}, 'order.', qr/A pattern is/ ],
	[ q{topics => '{NULL}'}, 'NULL', qr/A pattern is/ ],
	[ q{disable_after => '-1 s'}, '-00:00:01', qr/^Use 1 ms to 10 years; 0: never/ ],
	[ q{challenge => 'maybe'}, 'maybe', qr/^Use 'options' or 'echo'/ ],
	[ q{disable_after => '11 years'}, '11 years', qr/^Use 1 ms to 10 years; 0: never/ ],
	[ q{filter => '$.total'}, '$."total"', qr/'\$\.total > 100'/ ],
	[ q{filter => '$.a ? (@ > 1)'}, '$."a"', qr/exists\(/ ],
	[ q{filter => '$x == 1'}, '$"x"', qr/'\$\.total > 100'/ ],
	[ q{headers => '[]'}, 'object', qr/\{"X-Tenant": "acme"\}/ ],
	[ q{headers => '{"Host": "x"}'}, 'Host', qr/another name/ ],
	[ q{headers => '{"a": "b", "Count": 1}'}, '"Count"', qr/flat object/ ],
	[ q{headers => '{"a": "b", "Deep": {"c": "d"}}'}, '"Deep"', qr/flat object/ ],
	[ q{headers => '{"a": "b", "Lines": "c\\nd"}'}, '"Lines"', qr/line breaks/ ],
	[ q{headers => '{"x": "\u0085"}'}, 'control character', qr/line breaks/ ],
	[ q{headers => (SELECT jsonb_object_agg('x-' || n, '') FROM generate_series(1, 16) n)}, '16', qr/100 header lines/ ],
	[ q{headers => jsonb_build_object('x-a', repeat('x', 8190))}, '8193', qr/Shorten them/ ],
	[ q{topics => (SELECT array_agg('a.t' || n) FROM generate_series(1, 1001) n)}, '1001', qr/at most 1000/ ],
	[ q{filter => ('$.a == "' || repeat('x', 2048) || '"')::jsonpath}, 'filter takes 2', qr/at most 2048/ ],
	[ q{secret => 'hunter2'}, 'secret', qr/whsec_/ ]);
foreach my $setting (@settings)
{
	my ($argument, $value, $hint) = @$setting;
	refused("create_endpoint('f', '$url', $argument)", '22023', $value, $hint);
	refused("alter_endpoint('e', $argument)", '22023', $value, $hint);
}
foreach my $name (qw(ordering on_exhausted connect_timeout max_age backoff_base backoff_max batch_size batch_wait))
{
	refused("create_endpoint('f', '$url', $name => NULL)", '22004', "$name must not be null", qr/^Use /);
}
accepted("create_endpoint('f', '$url', $_ => NULL)") foreach qw(format max_in_flight timeout);
refused("create_endpoint($_)", '22023', 'invalid endpoint name', qr/1 to 63/)
  foreach ("'', '$url'", "'a b', '$url'", "'ä', '$url'", "repeat('x', 64), '$url'");
refused("create_endpoint(NULL, '$url')", '22004', 'the name of an endpoint must not be null', qr/1 to 63/);
refused("create_endpoint('f', '$_')", '22023', 'url', qr/\w/)
  foreach ('', 'example.com', 'https://example.com:0/', 'https://example.com:000/', 'ftp://example.com/', 'http://10.0.0.1/', 'https://u:p@example.com/');
refused("$_('e', 'https://example.com/' || repeat('x', 2029))", '22023', '2049', qr/at most 2048/)
  foreach (qw(create_endpoint alter_endpoint));
refused("alter_endpoint('e', reset => '{colour}')", '22023', 'colour', qr/rate_limit/);
refused("alter_endpoint('e', reset => '{url}')", '22023', 'url', qr/Options with a default/);
refused("create_endpoint('f', NULL)", '22004', 'url must not be null', qr{https://host/path});
refused("create_endpoint('f', '$url', topics => NULL)", '22004', 'topics must not be null', qr/'\{\*\}'/);
refused("create_endpoint('f', 'https://example.com:$_/')", '22023', "the URL's port", qr/1 to 65535/)
  foreach (0, '000', 65536, 99999, '0x50', 'http', -1);
accepted("create_endpoint('f', 'https://example.com:$_/')") foreach (1, 65535, '');

# A value and its default at once: each option that can be reset
my %value = (
	topics => "'{a}'",
	filter => "'\$.a > 1'",
	format => "'raw'",
	headers => "'{}'",
	ordering => "'none'",
	on_exhausted => "'block'",
	max_in_flight => '1',
	rate_limit => '1',
	timeout => "'1 s'",
	connect_timeout => "'1 s'",
	max_attempts => '1',
	max_age => "'1 h'",
	backoff_base => "'1 s'",
	backoff_max => "'1 h'",
	batch_size => '2',
	batch_wait => "'0'",
	disable_after => "'1 h'",
	config => "'{}'",
	credentials => "'{}'",
	label => "'a'",
	metadata => "'{}'",
	challenge => "'echo'",
	log_attempts => "'answers'");
foreach my $option (sort keys %value)
{
	refused("alter_endpoint('e', $option => $value{$option}, reset => '{$option}')",
		'22023', qq("$option"), qr/name the option in reset/);
	accepted("alter_endpoint('e', reset => '{$option}')");
}
is(join(',', sort keys %value), ask(<<'SQL'), 'these are all that alter_endpoint() changes but url and secret');
SELECT string_agg(a, ',' ORDER BY a COLLATE "C") FROM pg_proc, unnest(proargnames) a
WHERE oid::regproc::text = 'outbox.alter_endpoint' AND a NOT IN ('name', 'url', 'secret', 'reset')
SQL

# Places in the log
foreach my $call ("create_endpoint('f', '$url', start_at => %s)", "seek_endpoint('e', %s)")
{
	refused(sprintf($call, "'$_'"), '22023', qq("$_"), qr/'now', 'beginning' or a timestamp/)
	  foreach ('end', '', 'infinity', '-infinity', '2100-01-01');
	refused(sprintf($call, 'NULL'), '22004', 'start_at must not be null', qr/'now', 'beginning' or a timestamp/);
}

# Names that exist or not
refused("create_endpoint('e', '$url')", '42710', '"e"', qr/if_not_exists/);
accepted("create_endpoint('e', '$url', if_not_exists => true)");
accepted("drop_endpoint('nobody', if_exists => true)");
refused($_, '42704', 'nobody', qr/outbox\.endpoints/)
  foreach (
	"alter_endpoint('nobody', timeout => '1 s')", "drop_endpoint('nobody')", "pause_endpoint('nobody')",
	"resume_endpoint('nobody')", "seek_endpoint('nobody', 'now')", "rotate_secret('nobody')",
	"send_test('nobody')", "retry('nobody')", "discard('nobody')", "replay('nobody', 'epoch')");
refused($_, '22004', 'the name of an endpoint must not be null', qr/as it is listed/)
  foreach (
	'drop_endpoint(NULL)', 'drop_endpoint(NULL, if_exists => true)', "alter_endpoint(NULL, timeout => '1 s')",
	'pause_endpoint(NULL)', 'resume_endpoint(NULL)', "seek_endpoint(NULL, 'now')", 'rotate_secret(NULL)',
	'send_test(NULL)', 'retry(NULL)', 'discard(NULL)', "replay(NULL, 'epoch')", "resend(NULL, '$id')");
refused($_, '22004', 'event must not be null', qr/outbox\.emit/) foreach ('cancel(NULL)', 'wait_for(NULL)');
refused("resend('e', NULL)", '22004', 'event must not be null', qr/event_id/);
refused("cancel('$id')", '42704', $id, qr/outbox\.retention/);
refused("wait_for('$id')", '42704', $id, qr/committed/);
my $event = ask("SELECT outbox.emit('none', '1')");
refused("cancel('$event', 'nobody')", '42704', 'nobody', qr/outbox\.endpoints/);
refused("retry('e', topics => '{a..b}')", '22023', 'a..b', qr/A pattern is/);
refused($_, '22023', 'empty', qr/at least one pattern/)
  foreach ("retry('e', topics => '{}')", "discard('e', topics => '{}')", "replay('e', 'epoch', topics => '{}')");
refused($_, '22023', '2 dimensions', qr/one list/)
  foreach ("retry('e', topics => '{{a,b}}')", "replay('e', 'epoch', topics => '{{a},{b}}')");

# Times
refused("rotate_secret('e', grace => '-1 s')", '22023', '-00:00:01', qr/0 to 1 year/);
refused("rotate_secret('e', grace => '2 years')", '22023', '2 years', qr/0 to 1 year/);
refused("rotate_secret('e', grace => NULL)", '22004', 'grace must not be null', qr/0 to 1 year/);
refused("wait_for('$event', '-1 s')", '22023', '-00:00:01', qr/'0'/);
refused("wait_for('$event', '2 years')", '22023', '2 years', qr/at most 1 year/);
refused("wait_for('$event', NULL)", '22004', 'timeout must not be null', qr/'10 s'/);
refused("replay('e', '2026-01-02', '2026-01-01')", '22023', '2026-01-02', qr/from_time/);
refused("replay('e', '-infinity')", '22023', '-infinity', qr/finite/);
refused("replay('e', NULL)", '22004', 'from_time must not be null', qr/first and the last event/);
refused("replay('e', 'epoch', NULL)", '22004', 'to_time must not be null', qr/first and the last event/);

# Roles, purposes and figures
refused("$_('nobody')", '42704', 'role "nobody" does not exist', qr/Create it first/) foreach (qw(grant_emit revoke_all));
refused("$_(NULL)", '22004', 'role must not be null', qr/pg_roles/) foreach (qw(grant_emit revoke_all));
refused("privileges_of('bogus')", '22023', 'unknown purpose "bogus"', qr/'emit', 'watch'/);
refused('privileges_of(NULL)', '22004', 'purpose must not be null', qr/'emit', 'watch'/);
refused('metrics(NULL)', '22004', 'top must not be null', qr/Use 0/);
refused('tenant_usage(NULL)', '22004', 'from_time must not be null', qr/hours of the bill/);
refused("forget('acme', NULL)", '22004', 'key must not be null', qr/tenant alone/);
refused("tenant_usage('epoch', NULL)", '22004', 'to_time must not be null', qr/hours of the bill/);
accepted('metrics(0)');

# Two headers of the same name, in whatever case
foreach my $headers ('{"X-Tenant": "a", "x-tenant": "b"}', '{"x-tenant": "a", "x_tenant": "b"}')
{
	refused($_, '22023', 'another one has the same name', qr/case makes no difference/)
	  foreach ("emit('t', '1', headers => '$headers')", "emit_bytes('t', '', 'a/b', headers => '$headers')",
		"create_endpoint('f', '$url', headers => '$headers')", "alter_endpoint('e', headers => '$headers')");
}
accepted(q{emit('t', '1', headers => '{"x-a": "1", "x-b": "2", "x-a-": "3", "X-C": "4"}')});

refused('metrics(-1)', '22023', '-1', qr/0 for the sums/);
refused("$_('e', 'https://example.com/a?q=' || chr(233))", '22023', 'outside ASCII', qr/Percent-encode/)
  foreach qw(create_endpoint alter_endpoint);
accepted("create_endpoint('f', 'https://example.com/a?q#' || chr(233))");
refused("emit_bytes('t', 'x', '$_')", '22023', 'only spaces', qr/media type/) foreach ' ', '   ';

# Events
refused("emit('t', '1', deliver_at => 'infinity')", '22023', 'infinity', qr/a time in the future/);
refused("emit('t', '1', deliver_at => '2100-01-02', expires_at => '2100-01-01')",
	'22023', '2100-01-01', qr/later expires_at/);
refused("emit('t', '1', dedup_key => '')", '22023', 'dedup_key', qr/1 to 1024/);
refused("emit('t', '1', key => repeat('k', 1025))", '22023', '1025', qr/shorter/);
refused("emit('t', '1', headers => (SELECT jsonb_object_agg('x-' || n, '') FROM generate_series(1, 30) n))",
	'22023', '30', qr/payload/);
refused("emit('t', '1', $_)", '22023', 'control character', qr/Remove|remove/)
  foreach ("type => U&'a\\009f'", q{headers => '{"x": "a\u0080"}'});
refused("emit_bytes('t', 'x', U&'a\\0085')", '22023', 'control character', qr/Remove/);
refused("emit('t.*', '1')", '22023', 't.*', qr/letters, digits/);
refused("emit('outbox.mine', '1')", '42939', 'outbox.mine', qr/another name/);
refused("emit('t', repeat('[', 513) || repeat(']', 513))", '54000', '512', qr/flatter/);
refused("emit('t', (repeat('{\"a\":', 600) || '1' || repeat('}', 600))::jsonb)", '54000', '512', qr/flatter/);
refused("emit('t', repeat('[', 100000))", '54001', 'stack depth', qr/512/);
refused("emit_bytes('t', NULL, 'text/plain')", '22004', 'null', qr/bytes/);
refused("emit_bytes('t', 'x', NULL)", '22004', 'null', qr/media type/);
my ($rc, undef, $err) = $node->psql('postgres',
	"INSERT INTO outbox.events (topic, payload) VALUES ('t', (repeat('[', 513) || repeat(']', 513))::jsonb)");
like($err, qr/nested too deeply.*512.*HINT/s, 'an INSERT is refused likewise');

# Values that may be zero, or the largest there is
accepted("rotate_secret('e', grace => '0')");
accepted("wait_for('$event', '0')");
accepted("emit('t', repeat('[', 512) || repeat(']', 512))");
accepted("emit('t', '1', deliver_at => '-infinity')");
accepted("create_endpoint('f', '$url', max_in_flight => 1024, rate_limit => 0.0001, max_attempts => 1,"
	  . " timeout => '1 ms', batch_wait => '0', backoff_base => '1 ms', backoff_max => '1 ms')");
accepted("create_endpoint('f', '$url', batch_size => 2, batch_wait => '1 h', rate_limit => 1000000)");
accepted("create_endpoint('f', 'https://example.com:1/')");
accepted("create_endpoint('f', 'https://example.com:65535/')");
accepted("alter_endpoint('e', url => 'https://example.com/' || repeat('x', 2028))");
accepted("alter_endpoint('e')");

# Settings of the server
foreach my $setting (
	[ 'outbox.worker_max_in_flight', '0' ],
	[ 'outbox.wakeup_interval', '0' ],
	[ 'outbox.retention', '-1' ],
	[ 'outbox.dedup_window', '-1' ],
	[ 'outbox.max_payload_size', '0' ],
	[ 'outbox.log_attempts', 'some' ],
	[ 'outbox.allowed_networks', '10.0.0.0/33' ],
	[ 'outbox.no_such_setting', '1' ])
{
	my ($name, $value) = @$setting;
	($rc, undef, $err) = $node->psql('postgres', "ALTER SYSTEM SET $name = '$value'");
	like($err, qr/^.*ERROR:.*\Q$name\E/, "$name = '$value' is refused");
}
is(ask("SELECT count(*) FROM outbox.endpoints"), '1', 'nothing was made on the way');

$node->stop;
done_testing();
