#!/bin/sh
# aiperf against Flare, with its speculative metrics: one command, nothing besides it to install.
#
#   bench/aiperf.sh [OUT] [flare run's own arguments]
#
# Starts `flare run` (the demo model, or the CORE that is named) on a free port, lets aiperf stream REQUESTS chats at
# CONCURRENCY, half of them texts to be given back with one word changed, and leaves its report in OUT (default:
# aiperf-report). aiperf pins another pyzmq than we do, so it has an environment of its own in AIPERF_VENV, made on first
# use (about 1.2 GB, from PyPI). Tokens are counted by the server; no network is used by the run itself.
set -eu

cd "$(dirname "$0")/.."
out=${1:-aiperf-report}
[ $# -eq 0 ] || shift
bin=.venv/bin
venv=${AIPERF_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flare/aiperf-0.13.0}
requests=${REQUESTS:-30} concurrency=${CONCURRENCY:-2} tokens=${TOKENS:-64}

if [ ! -x "$venv/bin/aiperf" ]; then
    echo "Making $venv for aiperf: some minutes, once." >&2
    "$bin/python" -m venv "$venv"
    "$venv/bin/pip" install -q aiperf==0.13.0 || { rm -rf "$venv"; exit 1; }
fi

mkdir -p "$out"
work=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server"; } || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

"$bin/python" - "$requests" "$tokens" >"$work/prompts.jsonl" <<'PROMPTS'
import json, sys
from compose.bench.prompts import chat, copying

count, tokens = int(sys.argv[1]), int(sys.argv[2])
for pair in zip(chat((count + 1) // 2, tokens), copying((count + 1) // 2, tokens)):
    for body in pair:
        print(json.dumps({"text": body["messages"][0]["content"]}))
PROMPTS

# Its tokenizer is loaded, though the server counts: the core's own, since aiperf's builtin one is fetched from the network.
core=${1:-}
[ -d "$core" ] || core=$("$bin/python" -c 'from compose.demo import demo_core; print(demo_core(None, None))' | tail -n 1)
mkdir "$work/tokenizer"
cp "$core/tokenizer.json" "$work/tokenizer/"
echo '{"tokenizer_class": "PreTrainedTokenizerFast"}' >"$work/tokenizer/tokenizer_config.json"

"$bin/flare" run "$@" --port 0 --run-dir "$work/run" >"$out/server.log" 2>&1 &
server=$!
url=$("$bin/python" - "$work/run/frontend.json" "$server" <<'WAIT'
import json, os, pathlib, sys, time, urllib.request

notice, pid = pathlib.Path(sys.argv[1]), int(sys.argv[2])
while True:
    os.kill(pid, 0)  # raises when the server has ended
    try:
        at = json.loads(notice.read_bytes())
        url = f"http://{at['host']}:{at['port']}"
        urllib.request.urlopen(url + "/ready", timeout=5)
        model = json.load(urllib.request.urlopen(url + "/v1/models", timeout=5))["data"][0]["id"]
        print(url, model)
        break
    except (OSError, ValueError):
        time.sleep(0.2)
WAIT
)
model=${url#* } url=${url%% *}

"$venv/bin/aiperf" profile \
    --model "$model" --url "$url" --endpoint-type chat --streaming \
    --input-file "$work/prompts.jsonl" --custom-dataset-type single_turn \
    --request-count "$requests" --concurrency "$concurrency" \
    --extra-inputs "{\"max_tokens\": $tokens, \"temperature\": 0, \"seed\": 7}" \
    --use-server-token-count --tokenizer "$work/tokenizer" --no-gpu-telemetry --ui none \
    --output-artifact-dir "$out"
