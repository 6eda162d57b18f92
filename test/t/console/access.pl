# The console lets in only the users that it is told of, and each of them to its own rights.
# Every route is tried without a session, as a user that may only look, and with forged forms.
use strict;
use warnings;

use HTTP::Tiny;
use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Console;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_without_python();

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $http = HTTP::Tiny->new(max_redirect => 0, timeout => 60);
my $bomb = '<script>document.title = 1</script><img src=x onerror=alert(1)>';

OutboxTest::Console::roles($node);
endpoint($node, $receiver, 'billing', '/ok/billing', q(headers => '{"authorization": "Bearer token-of-billing"}'));
endpoint($node, $receiver, 'crm', '/abort/crm', "topics => '{order.*}'");
$node->safe_psql('postgres', "CREATE DATABASE without_extension");

my $event = emit($node, 'order.created', qq({"note": "$bomb", "rtl": "abc\x{e2}\x{80}\x{ae}def"}), "key => 'k'");
my $bytes = $node->safe_psql('postgres', q(SELECT outbox.emit_bytes('label.printed', '\x00ff0a3c', 'text/html')));
my $large = $node->safe_psql('postgres', q(SELECT outbox.emit('report.made', jsonb_build_object('text', repeat('x', 1000000)))));
wait_sql($node, "SELECT string_agg(endpoint || delivered || dead, ' ' ORDER BY endpoint) FROM outbox.stats", 'billing30 crm01');

# The routes are asked of the console itself, so that no new one is forgotten.
my @screens = map { s/\{endpoint\}/crm/r =~ s/\{event\}/$event/r =~ s/\{replay\}/1/r =~ s{^/tenant\z}{/tenant?name=acme}r } OutboxTest::Console::names('SCREENS', 'screens');
my @actions = OutboxTest::Console::names('ACTIONS', 'actions');
cmp_ok(@screens + @actions, '>', 25, 'the routes are known');

sub changes
{
	return $node->safe_psql('postgres',
		'SELECT (SELECT count(*) FROM outbox.endpoint_audit), (SELECT count(*) FROM outbox.commands), (SELECT count(*) FROM outbox.replays),'
		  . ' (SELECT count(*) FROM outbox.endpoints), (SELECT count(*) FROM outbox.kept_events), (SELECT count(*) FROM outbox.retention_here)');
}

my %sent = (endpoint => 'crm', event => $event, from => '2020-01-01', to => '2040-01-01', grace => '0', name => 'new', url => $receiver->url('/ok/new'),
	replay => 1, version => 1, events => '1 day', topics => '*', sure => 1, pick => "crm $event");
my %inside;

# An answer to GET, or to POST with these fields, with a cookie and other headers.
sub ask
{
	my ($console, $path, $form, %header) = @_;
	my %option = (headers => \%header);

	if ($form)
	{
		$option{content} = $http->www_form_urlencode($form);
		$header{'content-type'} = 'application/x-www-form-urlencoded';
	}
	my $answer = $http->request($form ? 'POST' : 'GET', $console->url . $path, \%option);
	my $policy = $answer->{headers}{'content-security-policy'} // '';

	fail("$path: $answer->{status} $answer->{content}") if $answer->{status} >= 500 && $answer->{status} != 503;
	$inside{"$path: its headers"}++
	  if $policy !~ /default-src 'none'/ || ($answer->{headers}{'x-content-type-options'} // '') ne 'nosniff'
	  || ($path !~ m{^/static} && ($answer->{headers}{'cache-control'} // '') ne 'no-store');
	$inside{"$path: script or style in the page"}++
	  if ($answer->{headers}{'content-type'} // '') =~ /html/
	  && $answer->{content} =~ m{<script(?! src="/static/live.js" defer>)|<[^>]* style=|<[^>]* on\w+=|javascript:}i;
	return $answer;
}

sub cookie
{
	my ($answer) = @_;
	my $given = $answer->{headers}{'set-cookie'} // '';
	return (ref $given ? join(';', @$given) : $given) =~ /\b(outbox_console=[^;]+)/ ? $1 : undef;
}

sub token
{
	my ($console, $session) = @_;
	return ask($console, '/do/pause?endpoint=crm', undef, cookie => $session)->{content} =~ /name="token" value="(\w+)"/ ? $1 : undef;
}

sub statuses
{
	my ($ask, @paths) = @_;
	my %seen;
	push @{ $seen{ $ask->($_)->{status} } }, $_ foreach @paths;
	return join '; ', map { "$_: " . ($_ eq '200' ? 'some' : "@{ $seen{$_} }") } sort keys %seen;
}

# A password file, two users
my $users = PostgreSQL::Test::Utils::tempdir('users') . '/users';
OutboxTest::Console::add_user($users, 'jane', 'operate', 'tea for two');
OutboxTest::Console::add_user($users, 'joe', 'read', 'two for tea');
unlike(slurp_file($users), qr/tea/, 'the file has no password');
my $console = OutboxTest::Console->new($node, passwords => qq("$users"));
my $before = changes();

my %answers = map { $_ => 1 } map { ask($console, $_)->{status} . ' ' . (ask($console, $_)->{headers}{location} // '') } @screens,
  map { "/do/$_?endpoint=crm" } @actions;
is(join(' ', keys %answers), '303 /sign-in', 'without a session each page leads to the sign-in');
%answers = map { $_ => 1 } map { ask($console, "/do/$_", { %sent, token => 'x' })->{status} } @actions;
is(join(' ', keys %answers), '303', 'and so does each form');

is(ask($console, '/sign-in', { name => 'jane', password => 'wrong' })->{status}, 403, 'a wrong password is refused');
is(ask($console, '/sign-in', { name => 'nobody', password => '' })->{status}, 403, 'and no user');
is(ask($console, '/sign-in', { name => 'joe', password => 'two for tea' }, 'sec-fetch-site' => 'cross-site')->{status}, 403, 'and the form of another site');
my $signed_in = ask($console, '/sign-in', { name => 'joe', password => 'two for tea' });
my $joe = cookie($signed_in);
like($signed_in->{headers}{'set-cookie'}, qr/HttpOnly.*SameSite=lax/i, 'scripts and other sites do not get the cookie');
my $jane = cookie(ask($console, '/sign-in', { name => 'jane', password => 'tea for two' }));

# May only look
is(statuses(sub { ask($console, $_[0], undef, cookie => $joe) }, grep { !/replay|payload|event/ } @screens), '200: some', 'a user that reads sees the screens');
is(ask($console, "/payload/$event", undef, cookie => $joe)->{status}, 404, 'but no payload');
like(ask($console, '/endpoint/billing', undef, cookie => $joe)->{content}, qr/Not known.*grant_to/s, 'and is told what its role may not see');
is(statuses(sub { ask($console, "/do/$_[0]?endpoint=crm", undef, cookie => $joe) }, @actions), "403: @actions", 'no action is offered to it');
my $token = ask($console, '/', undef, cookie => $joe)->{content} =~ /name="token" value="(\w+)"/ ? $1 : '';
isnt($token, '', 'its form to sign out has a token');
is(statuses(sub { ask($console, "/do/$_[0]", { %sent, token => $token }, cookie => $joe) }, @actions), "403: @actions", 'and none is done');

# May operate: forms that its pages have not made
my $hers = token($console, $jane);
is(statuses(sub { ask($console, "/do/$_[0]", {%sent}, cookie => $jane) }, @actions), "403: @actions", 'a form without a token is refused');
is(statuses(sub { ask($console, "/do/$_[0]", { %sent, token => $token }, cookie => $jane) }, @actions), "403: @actions", 'and one with the token of another user');
is(statuses(sub { ask($console, "/do/$_[0]", { %sent, token => $hers }, cookie => $jane, origin => 'https://elsewhere.example') }, @actions),
	"403: @actions", 'and one of another site');
is(statuses(sub { ask($console, "/do/$_[0]", { %sent, token => $hers }, cookie => $jane, 'sec-fetch-site' => 'cross-site') }, @actions),
	"403: @actions", 'whether the browser says so or so');
is(statuses(sub { ask($console, "/do/$_[0]", { %sent, token => $hers }, cookie => $jane =~ s/=(.)/=x$1/r) }, @actions),
	"303: @actions", 'a session that was changed is none');
is(changes(), $before, 'nothing of all this has changed anything');
is(ask($console, '/do/pause', { endpoint => 'crm', token => $hers }, cookie => $jane)->{status}, 200, 'her own form that is not sure is shown as a plan');
is(changes(), $before, 'and changes nothing either');
is(ask($console, '/do/pause', { endpoint => 'crm', token => $hers, sure => 1 }, cookie => $jane)->{status}, 303, 'one that is sure is carried out');
is($node->safe_psql('postgres', "SELECT actor, role FROM outbox.endpoint_audit WHERE action = 'pause'"), 'jane|console', 'and the audit has her name');

# Payloads are text, whatever they contain
my $page = ask($console, "/event/$event", undef, cookie => $jane)->{content};
like($page, qr/&lt;script&gt;document/, 'a script in a payload is text');
like($page, qr/abc\xe2\x9f\xa8U\+202E\xe2\x9f\xa9def/, 'and a mark that turns text round is shown');
like(ask($console, "/event/$bytes", undef, cookie => $jane)->{content}, qr/00 ff 0a 3c/, 'bytes are numbers');
my $file = ask($console, "/payload/$bytes", undef, cookie => $jane);
is($file->{content}, "\x00\xff\x0a<", 'and come as a file as they are');
is("$file->{headers}{'content-type'} $file->{headers}{'content-disposition'}", 'application/octet-stream attachment; filename="payload"', 'which no browser shows');
cmp_ok(length(ask($console, "/event/$large", undef, cookie => $jane)->{content}), '<', 100_000, 'of a megabyte the page has the beginning');
my @heavy = grep { length(ask($console, $_, undef, cookie => $jane)->{content}) > 100_000 } @screens;
is("@heavy", '', 'no page has more than 100 kB');

# What is secret
$page = join '', map { ask($console, $_, undef, cookie => $jane)->{content} } @screens, '/endpoint/billing', map { "/do/$_?endpoint=billing" } @actions;
unlike($page, qr/whsec_|token-of-billing/, 'no page has a secret or the value of a header');
like(ask($console, '/do/secret', { endpoint => 'billing', token => $hers, sure => 1 }, cookie => $jane)->{content}, qr/whsec_/, 'but the one that is asked for it');
unlike($console->log, qr/whsec_|token-of-billing|tea for two|two for tea|Traceback/, 'the log has none either');
like($console->log, qr/jane: Pause crm/, 'it has what was done, and by which user');

# Sessions end
OutboxTest::Console::add_user($users, 'jane', 'operate', 'another one');
is(ask($console, '/', undef, cookie => $jane)->{status}, 303, 'another password ends sessions of the former one');
append_to_file("$users.other", "jane:operate:x\n");
rename("$users.other", $users);
is(ask($console, '/', undef, cookie => $joe)->{status}, 303, 'and so does taking a user out');
is($http->get("http://evil.example:$console->{port}/", { peer => '127.0.0.1' })->{status}, 421, 'it does not answer to the name of another site');
is(ask($console, '/nowhere')->{status}, 404, 'there is no page beside these');
is(ask($console, '/static/../app.py')->{status}, 404, 'and no file beside its own');
ask($console, '/static/style.css');
$console->stop;

# Behind a proxy
$console = OutboxTest::Console->new($node, proxies => '["127.0.0.1/32"]', operators => '["jane"]');
is(ask($console, '/')->{status}, 403, 'a proxy that names no user is refused');
is(ask($console, '/do/pause?endpoint=crm', undef, 'x-forwarded-user' => 'jane')->{status}, 200, 'an operator of the proxy operates');
is(ask($console, '/do/pause?endpoint=crm', undef, 'x-forwarded-user' => 'joe')->{status}, 403, 'another user looks');
is(ask($console, '/', undef, 'x-forwarded-user' => [ 'joe', 'jane' ])->{status}, 403, 'two users are none');
$jane = cookie(ask($console, '/', undef, 'x-forwarded-user' => 'jane'));
is(ask($console, '/do/pause', { endpoint => 'billing', token => 'x', sure => 1 }, cookie => $jane, 'x-forwarded-user' => 'jane')->{status}, 403, 'forms are judged there, too');
is(ask($console, '/do/pause?endpoint=crm', undef, cookie => $jane, 'x-forwarded-user' => 'joe')->{status}, 403, 'the session of an operator is of no use to another user');
$console->stop;
$console = OutboxTest::Console->new($node, proxies => '["10.0.0.0/8"]', operators => '["jane"]');
is(ask($console, '/', undef, 'x-forwarded-user' => 'jane')->{status}, 403, 'the header of another address is ignored');
$console->stop;

# One role for all, nothing said, no extension
my $database = sprintf 'host=%s port=%d dbname', $node->host, $node->port;
$console = OutboxTest::Console->new($node, everyone => '"read"', read_only_database => '""');
is(statuses(sub { ask($console, "/do/$_[0]", { %sent, token => 'x' }) }, @actions), "403: @actions", 'on one machine, users look unless it is said otherwise');
$console->stop;
$console = OutboxTest::Console->new($node, database => qq("$database=without_extension user=console"));
my @silent = grep { my $path = $_; !wait_until(sub { ask($console, $path)->{content} =~ /no extension outbox|There is no event|no such view/ }, $path) } grep { !/search/ && $_ ne '/' } @screens;
is("@silent", '', 'each screen says that there is no extension');
like(ask($console, '/')->{content}, qr/It is not known whether events are delivered/, 'and the overview does not say that all is well');
$console->stop;
$console = OutboxTest::Console->new($node, read_timeout => '0.001');
my %late = map { $_ => ask($console, $_)->{content} } @screens;
cmp_ok(scalar(grep { /Not known|not known/ } values %late), '>', 5, 'screens say so when the database takes too long');
is(join(' ', grep { $late{$_} =~ /There is no endpoint yet|There are none|No endpoint belongs/ } keys %late), '', 'and none says that there is nothing');
$console->stop;
like(OutboxTest::Console::refusal(q(listen = "0.0.0.0")), qr/loopback address only/, 'it does not listen to the network when it knows no users');
like(OutboxTest::Console::refusal(q(pasword = "x")), qr/no such setting/, 'a setting that it does not know is refused');
is(join('; ', sort keys %inside), '', 'each answer has its headers, and no page has a script or a style in itself');
done_testing();
