#!/usr/bin/env bash
# healthcheck PORT: exit 0 if a worker's /healthz on this machine answers 200. The image has no curl, and needs none.
set -euo pipefail
exec 3<>"/dev/tcp/127.0.0.1/${1:?healthcheck: which port?}"
printf 'GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
read -r -t 2 answer <&3
[[ $answer == 'HTTP/1.'[01]' 200 '* ]]
