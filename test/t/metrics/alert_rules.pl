# The alert rules and the dashboard of monitoring/ are such as promtool and JSON accept.
# Each alert has a case in which it is silent and one in which it fires.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = "$top/monitoring";
my $rules = slurp_file("$dir/outbox.rules.yml");
my $cases = slurp_file("$dir/outbox.rules.test.yml");
my $sql = slurp_file("$top/sql/parts/views.sql");
my ($list) = $sql =~ /CREATE VIEW outbox\.metric_names AS(.*?);/s;
my %metric = map { $_ => 1 } $list =~ /'(outbox_\w+)'/g;
my @alerts = $rules =~ /- alert: (\w+)/g;
my @records = $rules =~ /- record: (\S+)/g;

cmp_ok(scalar(@alerts), '>', 10, 'there are alerts');
foreach my $alert (@alerts)
{
	my @expected = $cases =~ /alertname="$alert", alertstate="firing"\}\n\s+eval_time: \S+\n\s+exp_samples:(.*)/g;
	ok((grep { /\[\]/ } @expected), "$alert: a case where it is silent");
	ok((grep { !/\[\]/ } @expected), "$alert: a case where it fires") unless $alert eq 'OutboxNotScraped' && !@expected;
}
like($cases, qr/expr: \Q$_\E\n/, "$_: a case") foreach @records;

# Only figures that exist are asked for
my $dashboard = decode_json(slurp_file("$dir/outbox.dashboard.json"));
my @exprs = map { $_->{expr} } map { @{ $_->{targets} } } @{ $dashboard->{panels} };
cmp_ok(scalar(@exprs), '>', 20, 'the dashboard asks for something');
my %known = (%metric, map { $_ => 1 } @records);
foreach my $text (@exprs, $rules =~ /expr: (?:>-\n)?((?:.|\n(?= {10}))*)/g)
{
	my @unknown = grep { !$known{$_} } $text =~ /\b(outbox[_:][\w:]+)/g;
	is("@unknown", '', 'known figures: ' . substr($text =~ s/\s+/ /gr, 0, 60));
}

SKIP:
{
	unless (system('promtool --version > /dev/null 2>&1') == 0)
	{
		diag('NOT TESTED: the alert rules, because there is no promtool (Debian: prometheus)');
		skip 'no promtool', 2;
	}
	foreach my $command ([ 'check', 'rules', "$dir/outbox.rules.yml" ], [ 'test', 'rules', "$dir/outbox.rules.test.yml" ])
	{
		my ($out, $err) = ('', '');
		my $ok = IPC::Run::run([ 'promtool', @$command ], '<', \undef, '>', \$out, '2>', \$err);
		ok($ok, "promtool $command->[0] rules") or diag("$out$err");
	}
}

done_testing();
