# A standby that is promoted while a receiver owes its proof asks for it, and keeps the proofs it has.
# The requests that were made before count, and events that waited are sent once the proof is there.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = outbox_node('primary', streaming => 1, conf => "wal_level = replica\n");
my $receiver = OutboxTest::Receiver->new('main');

sub all_requests { my ($path) = @_; return grep { $_->{path} eq $path } $receiver->requests }
sub challenges { return grep { ($_->{body} // '') =~ /"type":"outbox.challenge"/ } all_requests(@_) }
sub events { return grep { ($_->{body} // '') !~ /"type":"outbox.challenge"/ } all_requests(@_) }

sub create
{
	my ($name, $path) = @_;
	$primary->safe_psql('postgres', "SELECT outbox.create_endpoint('$name', '" . $receiver->url($path)
		  . "', topics => '{$name.*}', challenge => 'echo', backoff_base => '10 ms')");
	return;
}

sub emit_to { my ($node, $name) = @_; return emit($node, "$name.a", '{}') }

# One has proved itself, one has not yet, and one was asked ten times
create('proved', '/echo/proved');
create('owes', '/status/404/owes');
create('spent', '/status/404/spent');
my $asked_of = q[SELECT challenges FROM outbox.endpoint_settings WHERE name = '%s'];
ok(wait_sql($primary, sprintf($asked_of, 'spent'), 10), 'one was asked ten times');
my @waiting = map { emit_to($primary, 'owes') } 1 .. 3;
$receiver->wait_for(1, path => '/echo/proved');
ok(wait_sql($primary, q[SELECT verified_at IS NOT NULL FROM outbox.endpoints WHERE name = 'proved']), 'one has its proof');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$primary->backup('standby');
$standby->init_from_backup($primary, 'standby', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres', q[SELECT outbox.resume_endpoint('owes')]);
create('newest', '/hold/newest');
$receiver->wait_for(1, path => '/hold/newest');
my $newest = emit_to($primary, 'newest');
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', q[SELECT string_agg(endpoint || ' ' || state, ', ' ORDER BY endpoint) FROM outbox.stats]),
	'newest unverified, owes unverified, proved active, spent unverified', 'the standby shows it');
$primary->stop('immediate');
my %before = map { $_ => scalar(challenges("/$_")) } 'echo/proved', 'status/404/spent';

$receiver->control(path => "/$_", behave => '/echo') foreach 'hold/newest', 'status/404/owes';
$standby->promote;
$receiver->wait_delivered(1, path => '/hold/newest', id => $newest);
pass('a challenge that was under way is sent anew, and the event follows');
$standby->safe_psql('postgres', q[SELECT outbox.resume_endpoint('owes')]);
$receiver->wait_delivered(1, path => '/status/404/owes', id => $_) foreach @waiting;
pass('events that waited are sent after the proof');
ok(wait_settled($standby), 'settled');
is(scalar(events('/status/404/owes')), 3, 'each once');
my $id = emit_to($standby, 'proved');
$receiver->wait_delivered(1, path => '/echo/proved', id => $id);
is(scalar(challenges('/echo/proved')), $before{'echo/proved'}, 'a proof that was replicated holds');
is(scalar(challenges('/status/404/spent')), $before{'status/404/spent'}, 'and a receiver that was asked ten times is left alone');
is($standby->safe_psql('postgres', q[SELECT state FROM outbox.stats WHERE endpoint = 'spent']), 'unverified', 'without a proof');

$standby->stop;
done_testing();
