# Which Debian mirror this machine uses: sourced by the scripts that get packages
# of another Debian.

# The site of the packages whose address ends so ("/debian"), or the usual one.
mirror() {
	used=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null |
		grep "$1/*\$" | head -1)
	echo "${used:-http://deb.debian.org$1}"
}

# Lines for a sources.list: a release, and what was mended in it since.  Experimental
# holds only what is newer than sid's.
release() {
	deb="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	echo "$deb $(mirror /debian) $1 main"
	case $1 in
		experimental) echo "$deb $(mirror /debian) sid main" ;;
		sid) ;;
		*) echo "$deb $(mirror /debian-security) $1-security main" ;;
	esac
}
