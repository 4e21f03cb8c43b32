#!/bin/sh
# Makes a base image for the Dockerfile from Debian packages, for machines without access to an image registry:
#
#   deploy/base-image.sh toolproxy-base && make image BASE=localhost/toolproxy-base
#
# Needs mmdebstrap, and podman, docker or buildah (ENGINE). MIRROR is a mirror of Debian, or a sources.list.
# If podman may not raise limits, CONTAINERS_CONF names a file with `[containers] default_ulimits = ["nofile=20000:20000",
# "nproc=30000:30000"]`. If crun refuses a machine that mixes cgroup versions, the file has `[engine] runtime = "runc"`.
set -eu
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing: apt-get install mmdebstrap" >&2; exit 1; }
name=${1:-toolproxy-base}
engine=${ENGINE:-$(basename "$(command -v podman || command -v docker || command -v buildah)")}
files=$(mktemp --suffix=.tar)
trap 'rm -f "$files"' EXIT

# Debian 13 has Python 3.13. Its manuals, documentation and translations are left out, as in Debian's own slim images.
mmdebstrap --variant=apt --include=ca-certificates,python-is-python3,python3,python3-venv \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    trixie "$files" ${MIRROR:+"$MIRROR"}

case $engine in
    buildah)
        container=$(buildah from scratch)
        buildah add --quiet "$container" "$files" /
        buildah commit --quiet --rm "$container" "localhost/$name"
        ;;
    *) "$engine" import "$files" "localhost/$name" ;;
esac
