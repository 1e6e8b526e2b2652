#!/bin/sh
# make-certificates.sh ADDRESS...: an authority of our own, and a certificate and key for each machine.
set -eu; umask 077
[ -f ca.key ] || openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=haloctl-ca -keyout ca.key -out ca.crt 2>/dev/null
for address; do
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$address" -keyout "$address.key" -out "$address.csr" 2>/dev/null
    printf 'subjectAltName=IP:%s,IP:127.0.0.1,DNS:localhost\n' "$address" >"$address.ext"
    openssl x509 -req -in "$address.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -extfile "$address.ext" -out "$address.crt" 2>/dev/null
done
