# Which Python, uv and registry: for the scripts beside this file, which set `root` first.

uv() { "$root/.local/uv/bin/uv" "$@"; }

# The interpreter itself, not a shim of a version manager in front of it.
python_path() {
  local candidate
  for candidate in ${AIRFLOW_FT_PYTHON:-} python3.11 python3 python3.12 python3.13; do
    "$candidate" -c 'import sys; assert sys.version_info >= (3, 11); print(sys.executable)' 2>/dev/null && return
  done
  printf 'Python 3.11 or newer is needed; name one by AIRFLOW_FT_PYTHON=/path/to/python\n' >&2
  exit 1
}

# uv does not read the settings of pip; who has a private index or certificate has told pip of it.
follow_pip_settings() {
  local index
  index=${PIP_INDEX_URL:-$("$1" -m pip config get global.index-url 2>/dev/null || true)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
}
