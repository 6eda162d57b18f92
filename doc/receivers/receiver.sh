answer() {
	printf 'HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1"
	exit
}

# The work: handle ID KEY FILE. When it fails, the event comes again.
handle() {
	{ printf '%s\t%s\t' "$1" "$2" && cat "$3" && echo; } >>events.txt
}

# The key as a block of 64 bytes, each XOR $1: HMAC by hand, because an argument
# of openssl would show the key to everything that lists processes.
pad() {
	local byte hex n=0
	for byte in $(openssl base64 -d -A <<<"${WEBHOOK_SECRET#whsec_}" | od -An -v -tu1); do
		printf -v hex '\\x%02x' $((byte ^ $1)) && printf "$hex" && n=$((n + 1))
	done
	for (( ; n < 64; n++)); do printf -v hex '\\x%02x' "$1" && printf "$hex"; done
}

sha256() { openssl dgst -sha256 -binary; }

length=0 id='' sent_at='' signatures='' key=''
read -r request
while IFS=': ' read -r name value && [ "$name" != $'\r' ]; do
	value=${value%$'\r'}
	case ${name,,} in
	content-length) length=$value ;;
	webhook-id) id=$value ;;
	webhook-timestamp) sent_at=$value ;;
	webhook-signature) signatures=$value ;;
	outbox-key) printf -v key '%b' "${value//%/\\x}" ;;
	esac
done
body=$(mktemp)
trap 'rm -f "$body"' EXIT
head -c "$length" >"$body"

good=v1,$({ pad 92; { pad 54; printf %s "$id.$sent_at."; cat "$body"; } | sha256; } | sha256 | openssl base64 -A)
[[ $sent_at =~ ^[1-9][0-9]{0,9}$ && " $signatures " == *" $good "* ]] || answer '401 Unauthorized'
age=$(($(date +%s) - sent_at))
((age <= 300 && age >= -300)) || answer '401 Unauthorized'

exec 9>done.lock && flock 9
grep -qxF "$id" done.txt 2>/dev/null && answer '204 No Content'
handle "$id" "$key" "$body" || answer '500 Internal Server Error'
echo "$id" >>done.txt # after the work
answer '204 No Content'
