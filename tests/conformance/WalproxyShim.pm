# Safekeepers between the nodes of PostgreSQL::Test::Cluster: perl -I... -MWalproxyShim t/SCRIPT.pl
#
# Each node that is made by init(allows_streaming => ...) is the primary of a family: three safekeepers and a proxy, started
# with the node. Its commits wait for them (synchronous_standby_names = 'walproxy'). A standby whose primary_conninfo names
# the primary of a family streams from the safekeepers of the family instead, and so does pg_receivewal without a slot. A
# standby of another standby is left as it is. If a script appends another list of synchronous standbys to the configuration,
# the list is 'walproxy' again.
#
# promote() of such a standby makes it the family's primary, as an operator would: the proxy ends, the commits of the old
# primary no longer wait, the standby receives all committed WAL and is promoted, and a proxy starts for it.
#
# Environment: WALPROXY_PYTHON, the interpreter that has walproxy; WALPROXY_FOLDER, where data and logs of the daemons go.

package WalproxyShim;

use strict;
use warnings;

use Carp;
use HTTP::Tiny;
use JSON::PP ();
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Scalar::Util qw(blessed);
use Time::HiRes qw(usleep);

use constant SAFEKEEPERS => (1, 2, 3);

my @families;
my %fed;    # node or application name => family

# At the time limit of the script the END blocks stop what it has started.
$SIG{TERM} = $SIG{INT} = sub { die "the time limit of the script has passed\n" };

# A family.

sub new_family
{
	my ($primary) = @_;
	my $self = bless { primary => $primary, folder => "$ENV{WALPROXY_FOLDER}/family" . @families, pids => {} },
	  __PACKAGE__;
	mkdir $self->{folder} or die "could not create $self->{folder}: $!";
	for my $kind (qw(listen pg http))
	{
		$self->{$kind}{$_} = PostgreSQL::Test::Cluster::get_free_port() for SAFEKEEPERS;
	}
	$self->{proxy_http} = PostgreSQL::Test::Cluster::get_free_port();
	push @families, $self;
	return $self;
}

sub run_daemon
{
	my ($self, $name, @arguments) = @_;
	return if $self->{pids}{$name};
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', "$self->{folder}/$name.log";
		open STDERR, '>&', \*STDOUT;
		delete @ENV{ grep { /^PG/ } keys %ENV };
		{
			no warnings 'exec';
			exec 'setpriv', '--pdeathsig', 'KILL', '--', $ENV{WALPROXY_PYTHON}, '-m', @arguments;
		}
		POSIX::_exit(127);
	}
	$self->{pids}{$name} = $pid;
	return;
}

sub kill_daemon
{
	my ($self, $name) = @_;
	my $pid = delete $self->{pids}{$name} or return;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

sub start_safekeepers
{
	my ($self) = @_;
	# With it the servers and client programs log in to the safekeepers.
	$ENV{PGPASSFILE} = "$ENV{XDG_STATE_HOME}/walproxy/pgpass";
	for my $id (SAFEKEEPERS)
	{
		$self->run_daemon(
			"safekeeper$id", 'safekeeper', 'run', '--id', $id,
			'--data-dir', "$self->{folder}/safekeeper$id",
			'--listen', "127.0.0.1:$self->{listen}{$id}",
			'--pg-listen', "127.0.0.1:$self->{pg}{$id}",
			'--http', "127.0.0.1:$self->{http}{$id}");
	}
	return;
}

# Start the proxy for the present primary, and return when commits can succeed.
sub attach
{
	my ($self) = @_;
	$self->start_safekeepers;
	$self->run_daemon(
		'walproxy', 'walproxy', 'run',
		'--primary', $self->{primary}->connstr('postgres'),
		# As with synchronous_standby_names = '*', remote_apply waits for one of the standbys, if a script asks for it.
		'-c', 'remote_apply_standbys=ANY 1 (*)',
		'--safekeepers', join(',', map { "$_=127.0.0.1:$self->{listen}{$_}" } SAFEKEEPERS),
		'--http', "127.0.0.1:$self->{proxy_http}");
	my $state = '';
	wait_until(sub { ($state = status($self->{proxy_http})->{state} // '') eq 'streaming' })
	  or die "walproxy does not stream from " . $self->{primary}->name . ": $state; logs are in $self->{folder}";
	return;
}

sub commit_lsn
{
	my ($self) = @_;
	return status($self->{proxy_http})->{commit_lsn};
}

# What replaces host and port of the primary in a connection string.
sub readers_hosts
{
	my ($self) = @_;
	return 'host=' . join(',', ('127.0.0.1') x SAFEKEEPERS) . ' port=' . join(',', map { $self->{pg}{$_} } SAFEKEEPERS);
}

sub status
{
	my ($port) = @_;
	my $reply = HTTP::Tiny->new(timeout => 5)->get("http://127.0.0.1:$port/status");
	return $reply->{success} ? JSON::PP::decode_json($reply->{content}) : {};
}

sub wait_until
{
	my ($condition) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	until ($condition->())
	{
		return 0 if time > $deadline;
		usleep(50_000);
	}
	return 1;
}

sub family_of_primary
{
	my ($node) = @_;
	my ($family) = grep { $_->{primary} == $node } @families;
	return $family;
}

sub in_recovery
{
	my ($node) = @_;
	return -e $node->data_dir . '/standby.signal' || -e $node->data_dir . '/recovery.signal';
}

# The methods of PostgreSQL::Test::Cluster that change.

sub wrap
{
	my ($name, $code) = @_;
	no strict 'refs';
	no warnings 'redefine';
	my $original = \&{"PostgreSQL::Test::Cluster::$name"};
	*{"PostgreSQL::Test::Cluster::$name"} = sub { return $code->($original, @_) };
	return;
}

wrap(
	init => sub {
		my ($original, $node, %params) = @_;
		$original->($node, %params);
		return unless $params{allows_streaming};
		new_family($node);
		# Without fsync walproxy refuses the primary.
		$node->append_conf('postgresql.conf', "fsync = on\nsynchronous_standby_names = 'walproxy'");
		return;
	});

wrap(
	init_from_backup => sub {
		my ($original, $node, @arguments) = @_;
		$original->($node, @arguments);
		$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
		return;
	});

wrap(
	append_conf => sub {
		my ($original, $node, $file, $text) = @_;
		$text =~ s{(primary_conninfo\s*=\s*')([^'\n]*)(')}{$1 . conninfo_of_feed($node, $2) . $3}ge;
		# Whichever standby a script names here, it is one that does not stream from the primary.
		$text =~ s{(synchronous_standby_names\s*=\s*')[^'\n]+'}{$1walproxy'}g;
		# The proxy needs a slot and a walsender besides those of the script.
		$text =~ s{(max_replication_slots|max_wal_senders)(\s*=\s*)([1-9]\d*)}{$1 . $2 . ($3 + 1)}ge;
		return $original->($node, $file, $text);
	});

sub conninfo_of_feed
{
	my ($node, $conninfo) = @_;
	my ($port) = $conninfo =~ /\bport=(\d+)/;
	my ($family) = grep { defined $port && $_->{primary}->port == $port } @families;
	delete $fed{ $node->name };
	return $conninfo unless $family;
	my ($name) = $conninfo =~ /\bapplication_name=(\w+)/;
	my $rest = join ' ', grep { !/^(?:host|port|dbname)=/ } split ' ', $conninfo;
	$fed{$_} = { family => $family, node => $node } for grep { defined } $node->name, $name;
	return join ' ', grep { length } $family->readers_hosts, $rest;
}

wrap(
	start => sub {
		my ($original, $node, @arguments) = @_;
		my $family = family_of_primary($node);
		$family->start_safekeepers if $family;
		my $started = $original->($node, @arguments);
		$family->attach if $family && defined $node->{_pid} && !in_recovery($node);
		return $started;
	});

wrap(
	promote => sub {
		my ($original, $node) = @_;
		my $family = ($fed{ $node->name } // {})->{family};
		return $original->($node) unless $family;
		my $old = $family->{primary};
		my $commit_lsn = $family->commit_lsn;
		$family->kill_daemon('walproxy');
		if ($old != $node)
		{
			$old->append_conf('postgresql.conf', "synchronous_standby_names = ''");
			$old->reload if defined $old->{_pid};
		}
		if (defined $commit_lsn)
		{
			$node->poll_query_until('postgres', received($commit_lsn, 'flush'))
			  or print "# node \"" . $node->name . "\" has not received the WAL up to $commit_lsn\n";
		}
		$node->append_conf('postgresql.conf', "synchronous_standby_names = 'walproxy'");
		$node->reload;
		$original->($node);
		$family->{primary} = $node;
		delete $fed{$_} for grep { $fed{$_}{node} == $node } keys %fed;
		$family->attach;
		return;
	});

sub received
{
	my ($lsn, $mode) = @_;
	my $position =
	  $mode eq 'replay'
	  ? 'pg_last_wal_replay_lsn()'
	  : 'GREATEST(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())';
	return "SELECT '$lsn'::pg_lsn <= $position";
}

# The primary does not list the standbys of safekeepers: the standby is asked.
wrap(
	wait_for_catchup => sub {
		my ($original, $node, $standby, $mode, $lsn) = @_;
		my $name = blessed($standby) ? $standby->name : $standby;
		my $feed = $fed{$name};
		return $original->(@_[ 1 .. $#_ ]) unless $feed && $feed->{family}{primary} == $node;
		$mode //= 'replay';
		$lsn //= $node->lsn('write');
		print "Waiting for the ${mode}_lsn of the standby $name of safekeepers to pass $lsn\n";
		$feed->{node}->poll_query_until('postgres', received($lsn, $mode)) or croak 'timed out waiting for catchup';
		return;
	});

for my $method (qw(command_ok command_fails command_like command_fails_like command_checks_all))
{
	wrap(
		$method => sub {
			my ($original, $node, $command, @rest) = @_;
			my $family = family_of_primary($node);
			if ($family && $command->[0] eq 'pg_receivewal' && !grep { /^(?:-S|--slot|--create-slot|--drop-slot)/ } @$command)
			{
				my @words = split ' ', $family->readers_hosts;
				$command = [ $command->[0], map({ /^(host|port)=(.*)/ ? "--$1=$2" : () } @words), @$command[ 1 .. $#$command ] ];
			}
			return $original->($node, $command, @rest);
		});
}

# The header files of the source are of the server's version; those of an installed server may not be installed.
{
	no warnings 'redefine';
	*PostgreSQL::Test::Utils::scan_server_header = sub {
		my ($header, $pattern) = @_;
		my $path = "$ENV{top_builddir}/src/include/$header";
		for my $line (split /^/, slurp_file($path))
		{
			my @found = $line =~ /^$pattern/;
			return @found if @found;
		}
		die "could not find $pattern in $path";
	};
}

# Before the end of PostgreSQL::Test::Cluster, which stops its nodes.
END
{
	my $exit_code = $?;
	for my $family (@families)
	{
		$family->kill_daemon($_) for keys %{ $family->{pids} };
	}
	$? = $exit_code;
}

1;
