#!/usr/bin/env bash
# The commands of the README on a minimal Debian: its own Python, make and git, and nothing else.
#
#   make bare                    `make run` as an ordinary user and as root, and `make test` as root
#   tests/bare.sh tests/core     these tests instead of all; `tests/bare.sh -` for none
#   SUITE=trixie make bare       another release of Debian (default: the one that runs here)
#   BASE=/var/tmp/base make bare   keeps the fresh system there, and starts from it the next time
#
# Packages come from where this machine gets its own: the mirror, proxies and certificates of apt and pip are read from
# its configuration and its environment. Everything happens in a folder, mounts and processes of its own, and goes when
# this ends; the logs stay.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${BARE_INSIDE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "only root can make a system: sudo make bare" >&2; exit 1; }
  command -v debootstrap >/dev/null || { echo "not installed: debootstrap; apt-get install debootstrap" >&2; exit 1; }
  BARE_INSIDE=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"
fi

. /etc/os-release
suite=${SUITE:-$VERSION_CODENAME}
work=$(mktemp -d /var/tmp/headgate-bare-XXXXXX)
root=$work/root logs=$work/logs
mkdir "$root" "$logs"
trap 'umount -lR "$root/proc" "$root/dev" || true; rm -rf --one-file-system "$root" || true; echo "logs: $logs"' EXIT
failures=0

# step NAME COMMAND...: runs it, and says how long it took and what it said last.
step() {
  local name=$1 log=$logs/${1//[^a-z]/-} begun=$SECONDS verdict=ok
  shift
  "$@" >"$log" 2>&1 || { verdict=FAILED; failures=$((failures + 1)); }
  printf '%-6s %4d s  %s\n' "$verdict" $((SECONDS - begun)) "$name"
  if [ "$verdict" = ok ]; then tail -n 1 "$log" | sed 's/^/               /'; else tail -n 40 "$log"; fi
}

# as USER COMMAND: runs a shell command there, in that user's copy of the checkout, with nothing of this environment
# but what pip and apt have to know. With EXEC=exec, it takes the place of the shell, so that a signal reaches it.
known=$(env | grep -E '^(PIP_[A-Z_]*|(http|https|no|all|HTTP|HTTPS|NO|ALL)_(proxy|PROXY)|SSL_CERT_(FILE|DIR))=' || true)
as() {
  local user=$1 home=/root
  [ "$user" = root ] || home=/home/$user
  mapfile -t variables <<<"$known"
  ${EXEC:-} chroot --userspec="$user" --groups= "$root" /usr/bin/env -i "${variables[@]:-BARE=1}" HOME="$home" USER="$user" \
    LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "cd $home/headgate && $2"
}

fresh_system() {
  local mirror base=${BASE:-$root}
  if [ ! -e "$base/bin/sh" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | head -n 1)
    rm -rf --one-file-system "$base.part"
    debootstrap --variant=minbase --include=python3,make,git "$suite" "$base.part" "$mirror"
    umount "$base.part/proc" 2>/dev/null || true
    mv -T "$base.part" "$base"
  fi
  [ "$base" = "$root" ] || cp -a "$base/." "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  apt-config dump | grep -iE '^Acquire::[a-z:]*(proxy|verify|cainfo)' >"$root/etc/apt/apt.conf.d/90bare" || true
  local settings=(/etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf) each
  # Certificates and folders that those name.
  for each in /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates \
    $(cat "${settings[@]}" 2>/dev/null | grep -oE '/[^ ,]+' || true) \
    $(sed -n 's/^[A-Za-z_]*=\(\/.*\)/\1/p' <<<"$known"); do
    [ ! -e "$each" ] || cp -rL --parents "$each" "$root"
  done
  [ ! -e /etc/pip.conf ] || cp -L /etc/pip.conf "$root/etc/"
  chroot "$root" useradd --create-home ann
  for each in "$root/root" "$root/home/ann"; do
    [ ! -e ~/.config/pip/pip.conf ] || install -D ~/.config/pip/pip.conf "$each/.config/pip/pip.conf"
    [ ! -e ~/.pip/pip.conf ] || install -D ~/.pip/pip.conf "$each/.pip/pip.conf"
    mkdir "$each/headgate"
    git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x -C "$each/headgate"
  done
  chroot "$root" chown -R ann: /home/ann && as root 'python3 --version'
}

# What an ordinary user is told first, on one line, is what root has to run.
asks_for_packages() {
  local said
  said=$(as ann 'make --no-print-directory run' 2>&1) && { echo "it should not have run"; return 1; }
  echo "$said"
  said=$(head -n 1 <<<"$said")
  [[ $said == *"as root: "* ]] || return 1
  as root "export DEBIAN_FRONTEND=noninteractive; yes | { ${said#*as root: }; }" || return
  echo "${said#*as root: }"
}

# It serves, and the command line that it suggests is answered.
runs() {
  local user=$1 log=$work/said-$1 pid try code=0
  EXEC=exec as "$user" "exec make run OPTIONS='--http-port 0 --grpc-port 0 --admin-port 0'" >"$log" 2>&1 &
  pid=$!
  until [ -e "$log" ] && try=$(grep -o '[^ ]*headgate check .*' "$log"); do
    kill -0 "$pid" 2>/dev/null || { cat "$log"; return 1; }
    sleep 0.2
  done
  as "$user" "$try" >>"$log" 2>&1 || code=$?
  kill -TERM "$pid"
  wait "$pid" || true
  cat "$log"
  # Nothing but what the Makefile and the service say: no texts of Debian or pip.
  grep -vE '^(installing |Headgate |  |the first key |try it:|make: |[0-9TZ:.-]+ (INFO|WARNING) |allowed)' "$log" && code=1
  grep -E '^allowed' "$log" || code=1
  return "$code"
}

tests() {
  if [ $# = 0 ]; then
    as root 'make test'
  else
    as root "make servers .venv/.dev && .venv/bin/pytest -q -n 2 --dist loadfile $*"
  fi
}

step "a fresh $suite" fresh_system
[ "$failures" = 0 ] || exit 1
step "make run, an ordinary user: asks root for what is missing" asks_for_packages
step "make run, an ordinary user" runs ann
as root 'apt-get purge -y -qq "python3*-venv" && apt-get autoremove -y -qq' >/dev/null 2>&1 || true
step "make run, root" runs root
[ "$*" = - ] || step "make test, root" tests "$@"
exit "$failures"
