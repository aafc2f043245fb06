#!/usr/bin/env bash
# Installs whatever development needs into the ignored folder .local/, and nothing anywhere else.
#
#   tools/bootstrap.sh [COMPONENT...]      all components when none is named
#
#   venv         .local/venv           the virtual environment: requirements.lock and this project (editable)
#   kafka        .local/jars/kafka     an Apache Kafka broker, from Maven Central
#   spark-jars   .local/jars/spark     Spark's Kafka connector, from Maven Central
#   mariadb      .local/servers/mariadb
#   mysql        .local/servers/mysql
#   postgres     .local/servers/postgres
#
# The three database servers are packages of the distribution, unpacked but not installed: no service, no user, no
# script of a package runs. What is there already is left alone: a component is stamped with a checksum of what
# describes it (the lock, the pom, its recipe), so a repeat takes a fraction of a second. Only JDK, Maven and pip are
# installed into the system, and only where they are lacking (with sudo when not root).
# AIRFLOW_FT_PYTHON names the interpreter to build the virtual environment with.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
local_=$root/.local
here=$root/tools
mkdir -p "$local_"/{locks,log,stamps}

say() { printf '%s\n' "$*"; }
fail() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }

# --- the system: only what cannot be had privately -------------------------------------------------------------------

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo -n "$@" || fail "needs root to run: $*"
  else fail "needs root (or sudo) to run: $*"; fi
}

system_packages() {
  command -v apt-get >/dev/null || fail "please install $* by hand (there is no apt-get here)"
  (
    flock 9
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@"
  ) 9>"$local_/locks/apt"
}

need_java() {
  command -v java >/dev/null && command -v mvn >/dev/null && return
  system_packages default-jre-headless maven
}

# The interpreter itself, not a shim of a version manager in front of it.
python_path() {
  local candidate
  for candidate in ${AIRFLOW_FT_PYTHON:-} python3.11 python3 python3.12 python3.13; do
    "$candidate" -c 'import sys; assert sys.version_info >= (3, 11); print(sys.executable)' 2>/dev/null && return
  done
  fail "Python 3.11 or newer is needed; name one by AIRFLOW_FT_PYTHON=/path/to/python"
}

# --- the virtual environment -----------------------------------------------------------------------------------------

uv() { "$local_/uv/bin/uv" "$@"; }

install_uv() {
  [ -x "$local_/uv/bin/uv" ] && return
  local python
  python=$(python_path)
  "$python" -m pip --version >/dev/null 2>&1 || { system_packages python3-pip; python=/usr/bin/python3; }
  "$python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --root-user-action=ignore \
    --target "$local_/uv" --upgrade uv
}

# uv does not read the settings of pip; who has a private index or certificate has told pip of it.
follow_pip_settings() {
  local index
  index=${PIP_INDEX_URL:-$("$(python_path)" -m pip config get global.index-url 2>/dev/null || true)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
}

install_venv() {
  local venv=$local_/venv
  install_uv
  follow_pip_settings
  if ! "$venv/bin/python" -c 'import sys; assert sys.version_info >= (3, 11)' 2>/dev/null; then
    uv venv --quiet --clear --python "$(python_path)" "$venv"
  fi
  VIRTUAL_ENV=$venv uv pip sync --quiet "$root/requirements.lock"
  # The finder of an editable install maps dags/ and plugins/ to airflow_ft.example_dags and airflow_ft.plugins.
  VIRTUAL_ENV=$venv uv pip install --quiet --no-deps --editable "$root"
}

# --- main ------------------------------------------------------------------------------------------------------------

# What a component is made from: changed contents make it install again.
recipe() {
  case $1 in
    venv) cat "$root/requirements.lock" "$root/setup.cfg" "$root/setup.py" "$root/pyproject.toml"; echo "$root" ;;
    *) fail "unknown component '$1' (venv kafka spark-jars mariadb mysql postgres)" ;;
  esac
}

component() { # NAME: installs it unless its stamp is current; several processes at once wait for each other
  local name=$1 sum began
  sum=$(recipe "$name" | sha256sum)
  [ "$(cat "$local_/stamps/$name" 2>/dev/null)" != "$sum" ] || return 0
  (
    flock 9
    [ "$(cat "$local_/stamps/$name" 2>/dev/null)" != "$sum" ] || exit 0
    say "installing $name ..."
    began=$SECONDS
    if ! ("install_${name//-/_}") >"$local_/log/$name" 2>&1; then
      printf 'installing %s FAILED; the end of .local/log/%s:\n' "$name" "$name" >&2
      tail -n 15 "$local_/log/$name" >&2
      exit 1
    fi
    printf '%s\n' "$sum" >"$local_/stamps/$name"
    say "installing $name ... $((SECONDS - began)) s"
  ) 9>"$local_/locks/$name"
}

component venv
