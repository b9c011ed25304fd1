# Sourced by ./quickstart and ./check: makes .venv with SuperInfer installed in it and puts it first on PATH.
# Usage: prepare_environment [extra]. $SUPERINFER_VENV names another place for the environment.

find_python() {
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "error: Python 3.11, 3.12 or 3.13 is needed and none was found on PATH" >&2
  return 2
}

prepare_environment() {
  local venv="${SUPERINFER_VENV:-$PWD/.venv}" target=. python
  [ -z "${1:-}" ] || target=".[$1]"
  if [ ! -x "$venv/bin/python" ]; then
    python="$(find_python)"
    echo "Setting up $venv with $python" >&2
    if ! "$python" -m venv "$venv"; then
      rm -rf "$venv"
      echo "error: $python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2
      return 2
    fi
    # The pip that comes with Python can be years old, and takes four times as long.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
  fi
  # A build folder of an older tree would ship modules that are gone.
  rm -rf build
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$target"
  export PATH="$venv/bin:$PATH"
}
