#!/usr/bin/env bash
# The image of deploy/Dockerfile, built without a daemon, and a request answered by the service in it.
#
#   make image                  builds on the base that the Dockerfile names or, where no registry is reached, on a
#                               minimal Debian that debootstrap makes
#   BASE=/var/tmp/base make image   keeps that Debian there, and starts from it the next time
#   IMAGE=headgate make image   keeps the image under this name, in buildah's storage
#
# It needs root, buildah and debootstrap. The certificates and settings of this machine's pip are lent to the build.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "only root can build it: sudo make image" >&2; exit 1; }
for each in buildah debootstrap; do
  command -v "$each" >/dev/null || { echo "not installed: $each; apt-get install buildah debootstrap" >&2; exit 1; }
done
# Neither a daemon nor namespaces of a container are needed: a folder for each layer, and chroot.
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
work=$(mktemp -d /var/tmp/headgate-image-XXXXXX) image=${IMAGE:-headgate-checked} container=
ended() {
  [ -z "$container" ] || buildah rm "$container" >/dev/null
  [ -n "${IMAGE:-}" ] || buildah rmi --force "$image" >/dev/null 2>&1 || true
  rm -rf --one-file-system "$work"
}
trap ended EXIT

base=$(sed -n 's/^ARG BASE=//p' deploy/Dockerfile)
echo "fetching $base ..."
if ! timeout 120 buildah pull --quiet "$base" >/dev/null 2>"$work/log"; then
  root=${BASE:-$work/root}
  if [ ! -e "$root/bin/sh" ]; then
    echo "no registry is reached: making a Debian ..."
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | head -n 1)
    rm -rf --one-file-system "$root.part"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates trixie "$root.part" "$mirror" \
      >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
    mv -T "$root.part" "$root"
  fi
  base=localhost/headgate-base
  fresh=$(buildah from scratch)
  buildah add --quiet "$fresh" "$root" / >/dev/null
  buildah commit --quiet --rm "$fresh" "$base" >/dev/null
fi

echo "building the image ..."
lent=()
for each in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$each" ] || lent+=(--volume "$(realpath "$each"):$each:ro")
done
buildah bud --quiet --file deploy/Dockerfile --build-arg BASE="$base" "${lent[@]}" --tag "$image" . >"$work/log" 2>&1 ||
  { tail -n 40 "$work/log" >&2; exit 1; }

# In a network of its own, where its ports are free: the service, the command that it suggests, and the check of its health.
echo "starting it ..."
healthy=$(sed -n 's/^    CMD //p' deploy/Dockerfile |
  "${PYTHON:-python3}" -c 'import json, shlex, sys; print(shlex.join(json.load(sys.stdin)))')
container=$(buildah from "$image")
unshare --net sh -c 'ip link set lo up && exec "$@"' sh buildah run --env HEALTHY="$healthy" "$container" -- sh -euc '
HEADGATE_LOG_FORMAT=text headgate serve >said 2>log & service=$!  # as JSON, the log has no request to try
left=300
until try=$(grep -o "headgate check .*" said); do
  kill -0 $service 2>/dev/null && [ $((left -= 1)) -gt 0 ] || { cat said log; exit 1; }
  sleep 0.2
done
eval "$try"
eval "$HEALTHY"
echo "healthy; $(headgate --version), $(python --version), user $(id -u)"
kill -TERM $service
wait $service'
buildah images --noheading --format 'size: {{.Size}}' "$image"
