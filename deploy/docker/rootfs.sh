#!/bin/sh
# Creates the root file system of the core image in $1: Debian's Python and its libraries, unpacked from the packages of
# the release that this runs on, with licenses and without documentation. Needs apt, but doesn't include it.
set -eu
root=$1
packages='base-files ca-certificates libbz2-1.0 libc6 libc-bin libcrypt1 libdb5.3 libexpat1 libffi8 libgcc-s1 liblzma5
 libncursesw6 libpython3.11-minimal libpython3.11-stdlib libreadline8 libsqlite3-0 libssl3 libstdc++6 libtinfo6
 libuuid1 media-types netbase python3-minimal python3.11-minimal tzdata zlib1g'

apt-get update
apt-get install -y --no-install-recommends ca-certificates
mkdir -p /build/packages "$root"
cd /build/packages
# shellcheck disable=SC2086 # a list of words
apt-get download $packages
for package in *.deb; do dpkg-deb -x "$package" "$root"; done

# The package's configuration step, which doesn't run here, would assemble the certificates.
mkdir -p "$root/etc/ssl/certs" "$root/tmp"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
chmod 1777 "$root/tmp"
# A new volume inherits these owners.
install -d -o 65532 -g 65532 "$root/archive" "$root/lake" "$root/mirror" "$root/backup" "$root/sinks" "$root/sql"
echo 'headrace:x:65532:65532:headrace:/tmp:/sbin/nologin' > "$root/etc/passwd"
echo 'headrace:x:65532:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"

cd "$root"
# Remove the packages' tools; only the loader and Python remain.
find bin sbin usr/bin usr/sbin \( -type f -o -type l \) ! -name 'python3*' -delete 2>/dev/null || true
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -type d -empty -delete
rm -rf usr/share/man usr/share/info usr/share/lintian usr/share/locale usr/share/bug usr/share/ca-certificates \
    usr/share/mime usr/share/pixmaps usr/share/applications usr/share/bash-completion usr/share/binfmts \
    usr/lib/*/gconv usr/lib/python3.11/lib2to3 usr/lib/python3.11/pydoc_data usr/lib/python3.11/distutils \
    usr/share/zoneinfo/right usr/share/zoneinfo/posix usr/share/python3 var/cache var/lib/dpkg
