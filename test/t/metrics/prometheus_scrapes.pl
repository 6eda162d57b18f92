# The real Prometheus scrapes outbox through the exporters of Debian, with the files of monitoring/.
# Each expression of the dashboard has data under load, and each alert is provoked.  "make
# clients" installs what this needs, and runs it.
use strict;
use warnings;

use IO::Socket::INET;
use JSON::PP;
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'takes some minutes and packages of Debian: "make clients" runs it' unless $ENV{OUTBOX_TEST_CLIENTS};
my @missing = grep { system("command -v $_ > /dev/null 2>&1") } qw(prometheus prometheus-postgres-exporter prometheus-sql-exporter);
if (@missing)
{
	diag("NOT TESTED: Prometheus, because there is no @missing: apt could not install it");
	plan skip_all => "no @missing";
}

my $dir = PostgreSQL::Test::Utils::tempdir('prometheus');
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'outbox'
outbox.allowed_networks = '127.0.0.1/32'
listen_addresses = '127.0.0.1'
CONF
$node->append_conf('pg_hba.conf', "host all prometheus 127.0.0.1/32 trust\n");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION outbox');
my $receiver = OutboxTest::Receiver->new('main');
my @grants = slurp_file("$top/doc/monitoring.md") =~ /^(CREATE ROLE prometheus .*?)^```/ms;
$node->safe_psql('postgres', $grants[0]);

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub free_port
{
	my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die "no port: $!";
	return $socket->sockport;
}

sub launch
{
	my ($name, $env, @command) = @_;
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>>', "$dir/$name.log");
		open(STDERR, '>&', \*STDOUT);
		%ENV = (%ENV, %$env);
		exec @command or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	return $pid;
}

sub get
{
	my ($port, $path) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 5) or return '';
	print $socket "GET $path HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
	local $/;
	my $answer = <$socket> // '';
	return $answer =~ s/^.*?\r\n\r\n//sr;
}

# A minute of the rules lasts a second here, and a GB is a kB.
my %port = map { $_ => free_port() } qw(postgres_exporter sql_exporter prometheus);
my $rules = slurp_file("$top/monitoring/outbox.rules.yml");
$rules =~ s/\b(\d+)m\b/${1}s/g;
$rules =~ s/\b(\d+)h\b/60s/g;
$rules =~ s/\* 60\b/* 1/g;
$rules =~ s/1024 \^ 3/1024/;
$rules =~ s/> 1000\b/> 10/;
append_to_file("$dir/outbox.rules.yml", $rules);
my $config = slurp_file("$top/monitoring/prometheus.yml");
$config =~ s/(scrape_interval:) 15s/$1 1s\n  evaluation_interval: 1s/ or die;
$config =~ s/127\.0\.0\.1:9187/127.0.0.1:$port{postgres_exporter}/ or die;
my ($job) = $config =~ /^(  - job_name: outbox\n.*)/ms;
$job =~ s/job_name: outbox/job_name: sql_exporter/;
$job =~ s/127\.0\.0\.1:\d+/127.0.0.1:$port{sql_exporter}/;
append_to_file("$dir/prometheus.yml", "$config$job");
my $sql_exporter = slurp_file("$top/monitoring/outbox.sql_exporter.yml");
$sql_exporter =~ s/127\.0\.0\.1:5432/127.0.0.1:${\ $node->port}/ or die;
$sql_exporter =~ s/interval: 15s/interval: 1s/ or die;
append_to_file("$dir/sql_exporter.yml", $sql_exporter);

launch('postgres_exporter',
	{ DATA_SOURCE_NAME => "postgresql://prometheus\@127.0.0.1:${\ $node->port}/postgres?sslmode=disable" },
	'prometheus-postgres-exporter', "--web.listen-address=127.0.0.1:$port{postgres_exporter}",
	"--extend.query-path=$top/monitoring/outbox.postgres_exporter.yml", '--disable-default-metrics', '--disable-settings-metrics');
launch('sql_exporter', {}, 'prometheus-sql-exporter', "-config.file=$dir/sql_exporter.yml",
	"-web.listen-address=127.0.0.1:$port{sql_exporter}");
launch('prometheus', {}, 'prometheus', "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/data",
	"--web.listen-address=127.0.0.1:$port{prometheus}");

sub query
{
	my ($expr) = @_;
	my $text = get($port{prometheus}, '/api/v1/query?query=' . $expr =~ s/([^\w.-])/sprintf '%%%02X', ord $1/ger);
	my $answer = eval { decode_json($text) } // {};
	return { error => $answer->{error} // $text } unless ($answer->{status} // '') eq 'success';
	return $answer->{data}{result};
}

sub has_data
{
	my ($expr) = @_;
	my $result = query($expr);
	return ref $result eq 'ARRAY' && @$result > 0;
}

sub logs
{
	foreach my $name (qw(postgres_exporter sql_exporter prometheus))
	{
		diag("$name: " . substr(slurp_file("$dir/$name.log"), -2000));
	}
	return;
}

# Load: one good endpoint, one that fails sometimes, and one that is down
my $quick = "backoff_base => '100 ms', backoff_max => '2 s'";
endpoint($node, $receiver, 'good', '/ok/good', "topics => '{a.*}'");
endpoint($node, $receiver, 'mixed', '/fail/mixed?rate=0.2', "topics => '{a.*}', $quick, max_attempts => 2");
endpoint($node, $receiver, 'down', '/ok/down', "topics => '{a.*}', $quick, max_attempts => 1000");
endpoint($node, $receiver, 'gone', '/ok/gone', "topics => '{a.*}'");
endpoint($node, $receiver, 'slow', '/ok/slow', "topics => '{a.*}', $quick");

my $loader;

sub load
{
	my ($sleep) = @_;
	$loader = fork // die "fork: $!";
	return if $loader;
	$node->psql('postgres', <<"SQL");
DO \$\$ BEGIN LOOP
	PERFORM outbox.emit('a.x', jsonb_build_object('t', repeat('x', 100)), key => (i % 10)::text) FROM generate_series(1, 10) i;
	PERFORM outbox.emit('a.once', '{}', dedup_key => 'the same');
	COMMIT;
	PERFORM pg_sleep($sleep);
END LOOP; END \$\$
SQL
	POSIX::_exit(0);
}

sub end_load
{
	ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO %outbox.emit%' AND pid <> pg_backend_pid()");
	waitpid($loader, 0);
	return;
}

sub alert_fires
{
	my ($alert, $more) = @_;
	my $expr = "ALERTS{alertname=\"$alert\", alertstate=\"firing\"" . (defined $more ? ", $more" : '') . '}';
	ok((wait_until { has_data($expr) } "$alert fires", 120), "$alert fires") or logs();
	return;
}

sub alert_ends
{
	my ($alert, $more) = @_;
	my $expr = "ALERTS{alertname=\"$alert\", alertstate=\"firing\"" . (defined $more ? ", $more" : '') . '}';
	ok((wait_until { my $r = query($expr); ref $r eq 'ARRAY' && @$r == 0 } "$alert ends", 120), "$alert ends");
	return;
}

my $begun = time;
load(0.05);
ok((wait_until { has_data('outbox_info{job="outbox"}') } 'postgres_exporter is scraped', 60), 'postgres_exporter is scraped') or logs();
ok((wait_until { has_data('outbox_info{job="sql_exporter"}') } 'sql_exporter is scraped', 60), 'sql_exporter is scraped') or logs();

# Both name the same figures
my $names = sub {
	my ($job) = @_;
	my $result = query("count by (__name__) ({job=\"$job\", __name__=~\"outbox_.+\"})");
	return join ' ', sort map { $_->{metric}{__name__} } ref $result eq 'ARRAY' ? @$result : ();
};
ok((wait_until { $names->('outbox') =~ /outbox_endpoint_latency/ && $names->('outbox') eq $names->('sql_exporter') } 'both exporters bring the same figures'),
	'both exporters bring the same figures')
  or diag($names->('outbox') . "\n" . $names->('sql_exporter'));
is(scalar(@{ query('count by (metric) ({job="outbox", metric!=""})') }), 0, 'no figure keeps its name in a label');

# Every expression of the dashboard, while something of everything happens
$receiver->control(path => '/ok/down', behave => '/status/503');
ask("SELECT outbox.emit('unwanted.x', '{}'), outbox.emit('a.later', '{}', deliver_at => now() + interval '1 h')");
my $dashboard = decode_json(slurp_file("$top/monitoring/outbox.dashboard.json"));
my @exprs = map { my $p = $_; map { [ "$p->{title}: $_->{expr}", $_->{expr} ] } @{ $p->{targets} } } @{ $dashboard->{panels} };
foreach (@exprs)
{
	my ($title, $expr) = @$_;
	$expr =~ s/\$datname/.*/g;
	$expr =~ s/\$__rate_interval/1m/g;
	ok((wait_until { has_data($expr) } "data: $title", 60), "data: $title") or diag(encode_json(query($expr)));
}

# What was emitted and delivered, as Prometheus sees it
ok((wait_until { has_data('outbox:delivered:rate5m > 0 and outbox:emitted:rate5m > 0') } 'recorded rates'), 'recorded rates');

note('the receiver is down, and events wait');
alert_fires('OutboxReceiverDown', 'endpoint="down"');
$receiver->control(path => '/ok/slow', behave => '/slow?ms=2000');
alert_fires('OutboxBacklogGrowing');
alert_fires('OutboxEventsLate', 'endpoint="slow"');
alert_fires('OutboxDiskRetained');
alert_fires('OutboxDeliveriesDied');
alert_fires('OutboxUnmatched');
note('and answers again');
$receiver->control(path => '/ok/down', behave => '');
$receiver->control(path => '/ok/slow', behave => '');
alert_ends('OutboxReceiverDown', 'endpoint="down"');

note('a receiver answers 410');
$receiver->control(path => '/ok/gone', behave => '/status/410');
alert_fires('OutboxEndpointDisabled', 'endpoint="gone"');
$receiver->control(path => '/ok/gone', behave => '');
ask("SELECT outbox.resume_endpoint('gone')");
alert_ends('OutboxEndpointDisabled', 'endpoint="gone"');
end_load();
alert_ends('OutboxBacklogGrowing');

note('a step is on hold');
ask("CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END'");
ask("CREATE TRIGGER refuse BEFORE INSERT ON outbox.attempt_log_$_ FOR EACH ROW EXECUTE FUNCTION public.refuse()") foreach 0 .. 2;
ask("SELECT outbox.emit('a.x', '{}')");
alert_fires('OutboxStepHeld');
ask('DROP FUNCTION public.refuse() CASCADE');
alert_ends('OutboxStepHeld');

# The picture of doc/monitoring.md is drawn from this: test/tools/prometheus_plot.py
if (my $picture = $ENV{OUTBOX_TEST_PICTURE})
{
	my $expr = '{__name__=~"outbox:.+|ALERTS|outbox_endpoint_deliveries", job=~"outbox|"}' =~ s/([^\w.-])/sprintf '%%%02X', ord $1/ger;
	append_to_file($picture, get($port{prometheus}, "/api/v1/query_range?query=$expr&start=$begun&end=" . time . '&step=1'));
}

note('the log is held');
$node->append_conf('postgresql.conf', "outbox.instance_name = 'another'");
$node->reload;
alert_fires('OutboxHeld', 'state="held"');
$node->adjust_conf('postgresql.conf', 'outbox.instance_name', undef);
$node->reload;
alert_ends('OutboxHeld');

note('there is no worker');
$node->append_conf('postgresql.conf', 'max_worker_processes = 1');
$node->restart;
alert_fires('OutboxNoWorker');
$node->adjust_conf('postgresql.conf', 'max_worker_processes', '8');
$node->restart;
alert_ends('OutboxNoWorker');

note('nothing is scraped');
$node->stop;
alert_fires('OutboxNotScraped');

done_testing();
