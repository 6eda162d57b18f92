# What an operator does not change in a form of the console stays as it was.
use strict;
use warnings;

use HTTP::Tiny;
use OutboxTest;
use OutboxTest::Console;
use Test::More;

OutboxTest::Console::skip_without_python();

my $node = outbox_node('main');
my $http = HTTP::Tiny->new(timeout => 60);

OutboxTest::Console::roles($node);
my $console = OutboxTest::Console->new($node);

# The fields of a form, as a browser would send them
sub shown
{
	my ($action, %about) = @_;
	my $page = $http->get($console->url . "/do/$action?" . $http->www_form_urlencode(\%about))->{content};
	utf8::decode($page);
	my %field = $page =~ /<input[^>]* name="(\w+)" value="([^"]*)"/g;

	while ($page =~ m{<select name="(\w+)">(.*?)</select>}gs)
	{
		my ($name, $options) = ($1, $2);
		($field{$name}) = $options =~ /<option selected>([^<]*)/;
	}
	s/&#34;|&quot;/"/g, s/&#39;/'/g, s/&lt;/</g, s/&gt;/>/g, s/&amp;/&/g foreach values %field;
	return (%field, %about);
}

# Characters that hide are shown by their numbers on pages, not in what comes back.
my $hidden = q(SELECT label = U&'a\200Db' AND filter::text = U&'($."name" == "a\00ADb")' AND tenant = U&'t\200B' FROM outbox.endpoints);
$node->safe_psql('postgres', q(SELECT outbox.create_endpoint('odd', 'https://example.com/', '{*}', label => U&'a\200Db', tenant => U&'t\200B')));
$node->safe_psql('postgres', q(SELECT outbox.alter_endpoint('odd', filter => U&'$.name == "a\00ADb"')));
is($node->safe_psql('postgres', $hidden), 't', 'an endpoint with characters that hide');
is($console->act('alter', shown('alter', endpoint => 'odd'), max_in_flight => 3)->{status}, 303, 'another setting is changed');
is($node->safe_psql('postgres', 'SELECT max_in_flight FROM outbox.endpoints'), 3, 'and has its value');
is($node->safe_psql('postgres', $hidden), 't', 'the others have theirs');
is($console->act('alter', shown('alter', endpoint => 'odd'), disable_after => '0')->{status}, 303, 'it is never to be disabled');
is($node->safe_psql('postgres', 'SELECT disable_after IS NULL FROM outbox.endpoints'), 't', 'so it is not');
is({ shown('alter', endpoint => 'odd') }->{disable_after}, '0 s', 'which the form shows');

# What holds for all stays what holds for all.
$node->safe_psql('postgres', 'SELECT outbox.set_tenant_limits(max_kept => 1000)');
is($console->act('limits', shown('limits', tenant => 'acme'), rate_limit => 5)->{status}, 303, 'a limit of a tenant');
is($node->safe_psql('postgres', "SELECT rate_limit, max_kept FROM outbox.tenant_limits('acme')"), '5|1000', 'beside one of all tenants');
$node->safe_psql('postgres', 'SELECT outbox.set_tenant_limits(max_kept => 2000)');
is($node->safe_psql('postgres', "SELECT rate_limit, max_kept FROM outbox.tenant_limits('acme')"), '5|2000', 'which still holds for it');
like($console->act('limits', shown('limits', tenant => 'acme'))->{content}, qr/Nothing is different/, 'without another value nothing is done');
is($console->act('limits', shown('limits', tenant => 'acme'), rate_limit => '')->{status}, 303, 'its limit is taken away');
is($node->safe_psql('postgres', "SELECT rate_limit FROM outbox.tenant_limits('acme')"), '', 'and is gone');
is($console->act('retention', shown('retention'), events => '3 days')->{status}, 303, 'events are kept for another time');
is($node->safe_psql('postgres', "SELECT string_agg(log || ' ' || keep, ', ') FROM outbox.retention_here"), 'events 3 days', 'and attempts as the setting of the server says');
$console->stop;
$node->stop;
done_testing();
