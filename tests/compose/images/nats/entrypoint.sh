#!/bin/sh
# As in the official image, a flag alone is one of the server's.
case "$1" in -*) set -- nats-server "$@" ;; esac
exec "$@"
