# Minimal Debian roots by debootstrap, and commands in them: sourced by the scripts that
# try something on machines that have never seen this project.
#
# Each root has process, mount and IPC namespaces of its own, so that whatever runs
# in it ends with it and no mount is left behind.  The network is this machine's,
# and apt in the root reaches its mirror as apt does here.  A root is kept as a tar
# file for a week, as debootstrap leaves it (OUTBOX_TEST_CACHE, or
# /var/cache/outbox-test; it can be deleted).

. "$top/test/lib/debian.sh"
cache=${OUTBOX_TEST_CACHE:-/var/cache/outbox-test}
passed=0
failed=0
skipped=0
running=

say() { echo "$(basename "$0"): $*"; }

skip() {
	say "SKIPPED: $*"
	skipped=$((skipped + 1))
}

finish() {
	[ $skipped = 0 ] || say "$skipped not tried"
	echo "$passed passed, $failed failed"
	[ $failed = 0 ]
	exit
}

# Begins: a place to work in, with a clone of HEAD in it.  Ends the script where there
# can be no roots.  "need_roots what is then not tried"
need_roots() {
	if [ "$(id -u)" != 0 ]; then
		skip "$*: needs root, for debootstrap and mounts"
		finish
	fi
	"$top/test/bin/setup" fresh || true
	if ! command -v debootstrap >/dev/null; then
		skip "$*: there is no debootstrap"
		finish
	fi
	if ! unshare --pid --mount --ipc --fork mount -t proc proc /proc 2>/dev/null; then
		skip "$*: this machine gives no namespaces"
		finish
	fi
	if ! git -C "$top" -c safe.directory='*' rev-parse -q --verify HEAD >/dev/null; then
		skip "$*: $top is no git repository"
		finish
	fi

	mkdir -p "$cache"
	work=$(mktemp -d "$cache/$(basename "$0").XXXXXX") || exit 1
	trap stop EXIT
	trap 'exit 130' INT TERM HUP

	# Cloned once: the repository may be another user's.
	printf '[safe]\n\tdirectory = *\n' >"$work/gitconfig"
	GIT_CONFIG_GLOBAL=$work/gitconfig git clone -q --no-hardlinks "$top" "$work/outbox" || exit 1
	say "HEAD is $(git -C "$work/outbox" log -1 --format='%h, %s')"
}

stop() {
	[ -z "$running" ] || kill -KILL "$running" 2>/dev/null
	wait
	rm -rf --one-file-system "$work"
}

# What debootstrap makes of a suite, from the tar file or anew.
unpack() {
	suite=$1 tar=$cache/debootstrap-$1.tar
	rm -rf --one-file-system "$work/root" "$work/new"
	if [ -z "$(find "$tar" -mtime -7 2>/dev/null)" ]; then
		mkdir "$work/new"
		debootstrap --variant=minbase "$suite" "$work/new" "$(mirror /debian)" \
			>"$work/log" 2>&1 </dev/null || return 1
		tar -C "$work/new" -cf "$tar.new" . && mv "$tar.new" "$tar"
		rm -rf --one-file-system "$work/new"
	fi
	mkdir "$work/root" && tar -C "$work/root" -xf "$tar"
}

# How this machine reaches its mirror: apt's settings for that, sources, keys,
# passwords, names, certificates.
carry_apt() {
	apt-config dump | grep '^Acquire::' >"$work/root/etc/apt/apt.conf.d/00outside"
	cp -a /etc/apt/auth.conf* /etc/apt/trusted.gpg.d "$work/root/etc/apt/" 2>/dev/null
	cp -L /etc/resolv.conf /etc/hosts "$work/root/etc/"
	for certificates in /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates; do
		[ ! -e $certificates ] || {
			mkdir -p "$work/root${certificates%/*}"
			cp -RL $certificates "$work/root${certificates%/*}/"
		}
	done
	release "$1" >"$work/root/etc/apt/sources.list"
}

# Runs a command in the root, as its only process tree: "inside seconds command".
# By pivot_root: in a chroot no test could make a namespace of its own.
inside() {
	limit=$1
	shift
	carried=$(env | grep -iE '^(https?_proxy|ftp_proxy|all_proxy|no_proxy|npm_config_[a-z_]*|NODE_EXTRA_CA_CERTS|SSL_CERT_FILE|SSL_CERT_DIR|TESTS)=')
	mapfile -t carried <<<"${carried:-LANG=C.UTF-8}"
	timeout -s KILL "$limit" \
		setpriv --pdeathsig KILL \
		unshare --pid --mount --ipc --uts --fork --kill-child sh -c '
			mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc &&
			mount -t tmpfs tmpfs dev/shm && pivot_root . mnt && cd / && umount -l mnt &&
			exec "$@"' "$work/root" \
		/usr/bin/env -i "${carried[@]}" HOME=/root LANG=C.UTF-8 TERM=dumb \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@" \
		>"$work/log" 2>&1 </dev/null &
	running=$!
	wait $running
	status=$?
	running=
	return $status
}

# Installs packages.  No service is started, also not by what is installed later, as
# long as policy-rc.d is there: its port would be this machine's.
# "install_before packages [command before]"
install_before() {
	printf '#!/bin/sh\nexit 101\n' >"$work/root/usr/sbin/policy-rc.d"
	chmod 755 "$work/root/usr/sbin/policy-rc.d"
	inside 900 sh -c "${2:-true} && apt-get -q update && DEBIAN_FRONTEND=noninteractive \
		apt-get install -q -y --no-install-recommends $1"
}

# A command in a folder of the root that must say that all went well.
# "try name seconds folder command proof"
try() {
	name=$1 limit=$2 folder=$3 command=$4 proof=$5 begun=$SECONDS
	if inside "$limit" sh -c "cd $folder && $command" && grep -qE "$proof" "$work/log"; then
		passed=$((passed + 1))
		say "ok: $name: $command, $((SECONDS - begun)) s: $(grep -E "$proof" "$work/log" | tail -1)"
		grep -E 'NOT TESTED|will be skipped' "$work/log" | sort -u
	else
		failed=$((failed + 1))
		say "FAILED: $name: $command, $((SECONDS - begun)) s; the end of its output:"
		tail -80 "$work/log"
		return 1
	fi
}
