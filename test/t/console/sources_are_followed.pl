# In the console an operator follows a source, again after its slot was lost, and no more.
use strict;
use warnings;

use HTTP::Tiny;
use OutboxTest;
use OutboxTest::Console;
use OutboxTest::Followed;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_without_python();

my $servers = OutboxTest::Followed->new;
my ($source, $follower, $receiver, $conninfo) = @$servers{qw(source follower receiver conninfo)};
my $http = HTTP::Tiny->new(timeout => 60);
my $console;

sub page { return $http->get($console->url . $_[0])->{content} }
sub announce { return $servers->at_source("SELECT outbox.emit('order.created', '{}')", 'shop_app') }

sub says
{
	my ($path, $pattern, $name) = @_;
	my $said;
	ok(scalar(wait_until { ($said = page($path)) =~ $pattern } $name), $name)
	  or diag($said =~ s/<[^>]*>//gr =~ s/\n\s*/\n/gr);
	return;
}

OutboxTest::Console::roles($follower);
my $services = $follower->data_dir . '/pg_service.conf';
append_to_file($services, "[shop]\n" . join("\n", map { s/'//gr } $conninfo =~ /(\w+=\S+)/g) . "\n");
{
	local $ENV{PGSERVICEFILE} = $services;
	$follower->restart;
}
endpoint($follower, $receiver, 'billing', '/ok/billing');
$console = OutboxTest::Console->new($follower);
my $earlier = announce();

says('/system', qr/follows no other server/, 'no source is followed');
like(page('/do/follow'), qr/Follow a source.*taken over, each once.*Go on/s, 'a source can be followed');
like($console->act('follow', name => 'shop', service => 'nowhere')->{content}, qr/Nothing was changed.*nowhere/s, 'a service that does not exist is said in words');
like(page('/system'), qr/follows no other server/, 'and nothing was changed');
is($console->act('follow', name => 'shop', service => 'shop', keep => '12 h')->{status}, 303, 'it is followed');
$receiver->wait_delivered(1, id => $earlier);
pass('an event that it had arrives');
says('/system', qr/shop.*streaming.*Follow again/s, 'it is shown');
my $live = announce();
$receiver->wait_delivered(1, id => $live);
pass('the next one arrives, too');

$follower->safe_psql('postgres', 'ALTER SUBSCRIPTION outbox_shop DISABLE');
ok(wait_sql($source, 'SELECT NOT active FROM pg_replication_slots'), 'nothing uses its slot');
$source->safe_psql('shop', 'SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots');
$follower->safe_psql('postgres', 'ALTER SUBSCRIPTION outbox_shop ENABLE');
my $lost = announce();
$follower->safe_psql('postgres', 'SELECT outbox.keep_sources()');
says('/system', qr/shop.*slot.lost/s, 'the console says so');
like(page('/do/follow?name=shop'), qr/name="publication" value="outbox".*name="keep" value="12 h"/s, 'to follow it again begins with what was said before');
is($console->act('follow', name => 'shop', service => 'shop')->{status}, 303, 'it is followed again');
$receiver->wait_delivered(1, id => $lost);
pass('and what it has emitted meanwhile arrives');

like(page('/do/unfollow?name=shop'), qr/Nothing more is taken.*retains/s, 'to follow it no more says what that does');
is($console->act('unfollow', name => 'shop')->{status}, 303, 'it is followed no more');
is($source->safe_psql('shop', 'SELECT count(*) FROM pg_replication_slots'), 0, 'and its slot is gone');
like($console->log, qr/local: Follow shop \(follow\).*local: Stop following shop \(unfollow\)/s, 'both are in the log, with the name of the user');

# Settings for a call of its own stay with its connection.
is($follower->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox-console' AND query ~ 'follow'"), 0, 'its connection is closed');

is($console->act('describe', topic => 'order.created', description => 'An order', example => '{"order": 1}')->{status}, 303, 'a topic is described');
says('/catalogue', qr/order\.created.*An order/s, 'and is in the catalogue');
is($follower->safe_psql('postgres', "SELECT string_agg(action || ' ' || actor || ' ' || (after -> 'source' IS NOT NULL), ', ' ORDER BY change_id) FROM outbox.endpoint_audit WHERE endpoint = ''"),
	'follow local true, follow local true, unfollow local true, describe local false', 'each is in the audit, with the name of the user');
# A source that cannot be reached keeps its slot, and the console says so.
is($console->act('follow', name => 'shop', service => 'shop')->{status}, 303, 'it is followed once more');
$source->stop;
my $left = $console->act('unfollow', name => 'shop');
my ($notice) = map { /(outbox_console_notice=[^;]+)/ } ref $left->{headers}{'set-cookie'} ? @{ $left->{headers}{'set-cookie'} } : $left->{headers}{'set-cookie'};
like($http->get($console->url . '/system', { headers => { cookie => $notice } })->{content}, qr/shop is followed no more\. Warning: .*slot/, 'a slot that stays is told');

like(page('/system'), qr/Changes.*local.*describe.*local.*unfollow/s, 'and on the page of the system');
like($console->act('describe', topic => 'order.created')->{content}, qr/is described already/, 'its entry is not replaced');
like($console->act('describe', topic => 'order.paid', example => '{')->{content}, qr/Nothing was changed.*json/s, 'what is no JSON is refused');
$console->stop;
done_testing();
