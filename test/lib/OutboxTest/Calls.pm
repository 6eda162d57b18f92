package OutboxTest::Calls;

# A call that makes sense of each function of the schema outbox, as pg_proc has it: a new function
# is called, too.  The arguments go by name and type.

use strict;
use warnings;

use Exporter 'import';
use JSON::PP;
use OutboxTest;

our @EXPORT = qw(prepare_calls functions call_of);

my $json = JSON::PP->new;
my $nowhere = q('host=127.0.0.1 port=1 dbname=nowhere');
my $first = '(SELECT min(endpoint_id) FROM outbox.endpoint_settings)';

# What an argument is when the call is about another one: by its function and name, by name and type, by name, or by type
my %by_name = (
	'create_endpoint.name' => q('new'), 'portal_change.url' => 'NULL',
	'before bigint' => '1', 'before jsonb' => q('{}'), 'version bigint' => '1', 'sequence oid' => q('outbox.events_seq'::regclass), 'credentials text[]' => q('{token}'),
	name => q('e'), endpoint => q('e'), tenant => q('acme'), url => q('http://127.0.0.1:1/'), old_url => q('http://127.0.0.1:1/'),
	topic => q('order.created'), role => q('outbox_calls'), conninfo => $nowhere, purpose => q('emit'), content_type => q('a/b'),
	start_at => q('now'), filter => q('$.a > 1'), patterns => q('{order.*}'), endpoint_id => $first, id => $first, ids => "ARRAY[$first]", endpoints => "ARRAY[$first]",
	event => '(SELECT min(id::text)::uuid FROM outbox.events)', seq => '(SELECT min(seq) FROM outbox.events)',
	function => q('f'), version => q('1.0'), log => q('events'), before => q('1:2:0'), settings => q('{}'), given => q('{}'), reset => q('{}'),
	payload => q('{"a": 2}'), schema => q('{"type": "object"}'), publication => q('outbox'), secret => q('whsec_' || encode(sha256('a'), 'base64')),
	start => q('{1,2,0}'), page_size => '20', bits => '32', field => q('secret'), action => q('retry'),
	query => q('SELECT 1'), tables => q('{events}'), setting => q('rate_limit'), statuses => q('{dead}'), status => q('dead'), cursor => q('abc'),
	timeline => q('1'), headers => q('{"x-a": "b"}'), most => '10', bucket => q('1 hour'), grace => q('1 hour'), timeout => q('1 ms'),
	from_time => q(pg_catalog.now() - interval '1 hour'), to_time => 'pg_catalog.now()', since => q(pg_catalog.now() - interval '1 hour'));
my %by_type = (
	text => q('a'), 'text[]' => q('{a}'), jsonb => q('{}'), json => q('{}'), jsonpath => q('$.a > 1'), bytea => q('a'), 'bytea[]' => q('{a}'), boolean => 'true',
	integer => '1', bigint => '1', smallint => '1', real => '1', oid => '1', uuid => q('00000000-0000-4000-8000-000000000000'),
	'integer[]' => q('{1}'), 'bigint[]' => q('{1}'), interval => q('1 hour'), 'timestamp with time zone' => 'pg_catalog.now()', pg_snapshot => q('10:20:10'),
	xid8 => q('10'), pg_lsn => q('0/10'), anyelement => q('a'), anynonarray => q('a'), 'outbox.endpoint_settings' => '(SELECT s FROM outbox.endpoint_settings s ORDER BY s.endpoint_id LIMIT 1)');
my %of_poly = (anyelement => 'text', anynonarray => 'text');

# What there is to call about: an endpoint of a tenant with each kind of event.  Nothing is sent
# once this has returned, so that answers stay the same.
sub prepare_calls
{
	my ($node, $receiver) = @_;

	$node->safe_psql('postgres', q(CREATE ROLE outbox_calls; SELECT outbox.set_event_type('order.created', schema => '{"type": "object"}')));
	endpoint($node, $receiver, 'e', '/ok/e', "tenant => 'acme', topics => '{order.*}', filter => '\$.a > 1'");
	endpoint($node, $receiver, 'dead', '/status/400', "tenant => 'acme', topics => '{dead}', max_attempts => 1");
	my @ids = map { emit($node, $_, '{"a": 2, "b": [0.1]}', "tenant => 'acme', key => 'k'") } qw(order.created order.paid dead);
	$receiver->wait_delivered(1, id => $ids[1]);
	wait_sql($node, "SELECT count(*) = 1 FROM outbox.dead_letters");
	wait_settled($node);
	$node->safe_psql('postgres', "SELECT outbox.replay('e', pg_catalog.now() - interval '1 hour')");
	wait_sql($node, 'SELECT bool_and(finished_at IS NOT NULL) FROM outbox.replays');
	wait_settled($node);
	$node->append_conf('postgresql.conf', 'outbox.enabled = off');
	$node->reload;
	wait_sql($node, "SELECT state = 'disabled' FROM outbox.status");
	emit($node, 'order.late', '{"a": 3}', "tenant => 'acme', deliver_at => pg_catalog.now() + interval '10 years'");
	emit($node, 'order.waits', '{"a": 3}', "tenant => 'acme'");
	return;
}

# Each function, with name, signature and args, which have name, type and whether there is a default.
sub functions
{
	my ($node) = @_;

	return @{ $json->decode($node->safe_psql('postgres', <<'SQL')) };
SELECT json_agg(json_build_object('name', p.proname, 'signature', p.oid::regprocedure::text, 'args', (
		SELECT coalesce(json_agg(json_build_object('name', p.proargnames[n], 'type', format_type(p.proargtypes[n - 1], NULL),
			'default', n > p.pronargs - p.pronargdefaults) ORDER BY n), '[]') FROM generate_series(1, p.pronargs) n)) ORDER BY p.oid::regprocedure::text)
FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.prorettype <> 'trigger'::regtype
SQL
}

# The call, with other expressions for some arguments.  One with a default that has no such
# expression is left out.
sub call_of
{
	my ($function, %given) = @_;
	my @args;

	foreach my $arg (@{ $function->{args} })
	{
		my ($name, $type) = @$arg{qw(name type)};
		my $value = $given{$name};

		# A page is one of an endpoint or of a tenant.
		next if !defined $value && $arg->{default} && !($name eq 'endpoint' && $function->{name} =~ /_page$/);
		($value) = grep { defined } $value, @by_name{ "$function->{name}.$name", "$name $type", $name }, $by_type{$type};
		$value //= "(SELECT r FROM $type r LIMIT 1)" if $type =~ /^outbox\./;    # a row, or NULL
		$value //= 'NULL';
		$value = "($value)::" . ($of_poly{$type} // $type) unless exists $given{$name};
		push @args, ($function->{args}[-1]{name} ? "$name => " : '') . $value;
	}
	return "outbox.$function->{name}(" . join(', ', @args) . ')';
}

1;
