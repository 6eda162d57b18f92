# A source file uses only its own folder of src/ and those below it, and no files form a circle.
# In sinks/ there are no circles either.  All of this is read from the text.  Also, no two files have the same name,
# and where a comment says which files write the fields of a struct, these and no others do.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @folders = qw(base server log emit format transport endpoint store worker);
my %height = map { $folders[$_] => $_ } 0 .. $#folders;
my (%named, %code, %defined_in, %uses, @strange, @lost, @up);

# The folder of a path below src/, or of what stands beside the folders.
sub height
{
	my ($file) = @_;
	return $file =~ m{^(\w+)/} ? $height{$1} // -1 : scalar @folders;
}

foreach my $path (glob "$top/src/{,*/,*/*/}*.[ch]")
{
	my $file = substr($path, length("$top/src/"));
	my $text = slurp_file($path);

	push @{ $named{ $file =~ s{.*/}{}r } }, $file;
	push @strange, $file if height($file) < 0;
	foreach my $header ($text =~ /^#include "(.*)"/mg)
	{
		my $ours = -e "$top/src/$header";

		push @lost, "$file: $header" if !$ours && glob "$top/src/*/{,*/}$header";
		push @up, "$file includes $header" if $ours && height($header) > height($file);
	}
	next if $file =~ /\.h$/;

	# Comments and strings use nothing.
	$text =~ s{/\*.*?\*/|"(?:\\.|[^"\\])*"}{ }gs;
	$code{$file} = $text;
	$defined_in{$_} = $file
	  foreach $text =~ /^(outbox_\w+)\(/mg,
	  $text =~ /^(?!static|extern|typedef|\s|#)[\w ]+[\s*]+(outbox_\w+)(?:\[[^\]]*\])?(?: =.*)?;/mg;
}
cmp_ok(scalar keys %code, '>', 60, 'the sources are there');
cmp_ok(scalar keys %defined_in, '>', 300, 'and what they define');

foreach my $file (sort keys %code)
{
	foreach my $name ($code{$file} =~ /\b(outbox_\w+)\b/g)
	{
		my $other = $defined_in{$name};

		next if !defined $other || $other eq $file || $uses{$file}{$other};
		$uses{$file}{$other} = $name;
		push @up, "$file uses $name of $other" if height($other) > height($file);
	}
}

# A sink is a folder of its own, whose functions begin with its name.  The sinks/ stand beside src/.
foreach my $sink (map { s{.*/}{}r } grep { -d } glob "$top/sinks/*")
{
	my (%sink_code, %sink_defined);

	foreach my $path (glob "$top/sinks/$sink/*.c")
	{
		my $file = 'sinks/' . $sink . '/' . $path =~ s{.*/}{}r;
		my $text = slurp_file($path) =~ s{/\*.*?\*/|"(?:\\.|[^"\\])*"}{ }gsr;

		$sink_code{$file} = $text;
		$sink_defined{$_} = $file foreach $text =~ /^(${sink}_\w+)\(/mg;
	}
	cmp_ok(scalar keys %sink_defined, '>', 30, "the functions of the sink $sink are there");
	foreach my $file (sort keys %sink_code)
	{
		$uses{$file}{ $sink_defined{$_} } = $_
		  foreach grep { defined $sink_defined{$_} && $sink_defined{$_} ne $file } $sink_code{$file} =~ /\b(${sink}_\w+)\b/g;
	}
}

# What uses nothing that is left goes, and what nothing uses: circles stay.
my $before = -1;
while ($before != keys %uses)
{
	$before = keys %uses;
	delete @$_{ grep { !$uses{$_} } keys %$_ } foreach values %uses;
	my %used = map { $_ => 1 } map { keys %$_ } values %uses;
	delete @uses{ grep { !%{ $uses{$_} } || !$used{$_} } keys %uses };
}

is("@strange", '', 'each file is in a folder that is known');
is(join(', ', @lost), '', 'our headers are included by their path');
is(join(', ', @up), '', 'no file includes or uses what is above it');
is(join(', ', map { my $file = $_; map { "$file uses $uses{$file}{$_} of $_" } sort keys %{ $uses{$file} } } sort keys %uses),
	'', 'no files use one another in a circle');
is(join(' ', grep { @{ $named{$_} } > 1 } sort keys %named), '', 'no two files have one name');

# What is said of them: each file in the README of its folder, the includes in a picture.
foreach my $folder (@folders)
{
	my $readme = slurp_file("$top/src/$folder/README.md");
	my @missing = grep { $readme !~ /^\| `\Q$_\E` \|/m }
	  map { s{.*/}{}r } glob "$top/src/$folder/{,*/}*.c";
	my @gone = grep { !$named{$_} } $readme =~ /^\| `(\w+\.[ch])` \|/mg;

	is("@missing", '', "src/$folder/README.md has a line for each file");
	is("@gone", '', '... and for no other');
}
# Who writes a struct: the files that assign to "member->field" or "member.field", the member being that of the
# endpoint or the loop with this type.
my @headers = map { slurp_file("$top/src/$_") } qw(endpoint/endpoint.h worker/loop.h);
my $struct = qr{typedef struct (?<type>Outbox\w+)\n\{\n(.*?)\n\} \k<type>;}s;
my $said = 0;
foreach my $header (@headers)
{
	while ($header =~ m{/\*((?:(?!\*/).)*)\*/\n$struct}gs)
	{
		my ($comment, $type, $body) = ($1, $2, $3);
		$comment =~ s/\s*\n \*\s*/ /g;
		$body =~ s{/\*.*?\*/}{}gs;
		my ($writers) = $comment =~ /Written by ([\w.,\s]*?\.c)\./ or next;
		my ($member) = map { /^\t$type\s+\*?(\w+);/m ? $1 : () } @headers;
		my $fields = join '|', $body =~ /(\w+)(?:\[\w+\])*;/g;
		my $place = qr/\b$member(?:\.|->)(?:$fields)\b(?:\[[^\]]*\])*/;
		my @found = grep {
			$code{$_} =~ /$place\s*(?:=(?!=)|[-+|&]=|\+\+|--)|(?:\+\+|--)\s*[\w.>-]*$place/
		} sort keys %code;

		$said++;
		is(join(' ', sort $writers =~ /(\w+\.c)/g), join(' ', sort map { s{.*/}{}r } @found), "the files that write $type");
	}
}
cmp_ok($said, '>=', 8, 'which is said of most structs of the endpoint');
my ($parts) = slurp_file("$top/src/endpoint/README.md") =~ /has these structs: (.*?)\. /;
my @members = map { /^\tOutbox(?!Tenant)\w+\s+\*?(\w+);/mg } map { /^typedef struct OutboxEndpoint\n\{\n(.*?)^\}/ms } $headers[0];
is($parts, join(', ', map { "`$_`" } @members), 'the structs of the endpoint, in the README');

my ($drawn) = run_command([ "$top/test/bin/folders" ]);
is(slurp_file("$top/src/folders.svg"), "$drawn\n",
	'src/folders.svg is what test/bin/folders draws (make folders)');
done_testing();
