#!/usr/bin/env bash
# Every test that needs a card: a process a file, JOBS at once, what measures alone at the end; then the slowest.
# Most of their time is one core compiling kernels, so files side by side take a fraction of one after the other, and
# share what they compiled. Usage: bench/gpu_tests.sh [LOGS [FILE...]]; PYTHON, JOBS, LIMIT (seconds a file).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs=${1:-$(mktemp -d)}
shift || true
mkdir -p "$logs"
jobs=${JOBS:-8}
export python=${PYTHON:-python3} logs limit=${LIMIT:-280}
"$python" -c 'from shared.cuda_driver import visible_gpus; raise SystemExit(visible_gpus() == 0)' || {
  echo "no NVIDIA GPU here: every test would be skipped" >&2
  exit 2
}
# Threads of references on the CPU: more than there are cores wait for one another tenfold (docs/log.md).
share=$(($(nproc) / jobs))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((share > 0 ? share : 1))}
files=("$@")
if [ ${#files[@]} = 0 ]; then
  mapfile -t files < <(grep -lE 'mark\.gpu|place: Place|Pair' -r tests --include 'test_*.py' | sort)
fi

named() { # FILE: what its log is called; files of two folders may have one name
  local name=${1#tests/}
  name=${name%.py}
  echo "${name//\//.}"
}
one() { # NAME ARGUMENTS...: one file's tests; its result in a line
  local name=$1 begin code
  shift
  begin=$(date +%s)
  timeout "$limit" "$python" -m pytest -p no:cacheprovider -q -m gpu --durations=0 "$@" > "$logs/$name.log" 2>&1
  code=$?
  [ "$code" = 5 ] && return 0 # nothing for a card in it
  printf '%s %4d s  %-44s %s\n' "$([ "$code" = 0 ] && echo ok || echo "FAILED($code)")" $(($(date +%s) - begin)) \
    "$name" "$(grep -E '^[0-9]+ (passed|failed|skipped|error)|, [0-9]+ passed|in [0-9.]+s' "$logs/$name.log" | tail -1)"
  [ "$code" = 0 ]
}
export -f named one
failed=0
printf '%s\n' "${files[@]}" | xargs -P "$jobs" -I{} bash -c 'one "$(named {})" {} -k "not costs"' || failed=1
measuring=$(grep -lE 'def test_\w*costs' "${files[@]}")
for file in $measuring; do one "$(named "$file").costs" "$file" -k costs || failed=1; done

echo "slowest:"
grep -hE '^[0-9.]+s (call|setup|teardown)' "$logs"/*.log | sort -rn | head -20
grep -hE '^figure:' "$logs"/*.log
for log in "$logs"/*.log; do grep -lqE '^(FAILED|ERROR)' "$log" && grep -hE '^(FAILED|ERROR|E  )' "$log" | head -20; done
exit $failed
