#!/bin/sh
# Checks the verdicts of `weft bench` on this machine's first GPU; needs PyTorch and a weft built with nvcc.
# Measures the four loads of `weft bench calibrate`, then records PyTorch at rest, polling, copying and
# multiplying matrices with nvidia-smi, and asks `weft bench diagnose` what that was, by the default
# thresholds and by the measured ones. Usage: tools/gpu-verdict.sh WEFT OUT
set -eu
weft=$1 out=$2
mkdir -p "$out"
"$weft" bench calibrate --seconds 6 --output "$out/watts.json" | tee "$out/calibrate.txt"
"$weft" bench "$(dirname "$0")/../models/atlas" --num-prompts 200 --max-concurrency 8 --random-input-len 64 \
    --random-output-len 64 --report "$out/report.html" | sed -n '/^Where/,$p' | tee "$out/bench.txt"
python3 - "$out" <<'EOF'
import subprocess
import sys
import time
import torch

one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
many = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
to = torch.empty_like(many)
loads = {"idle": lambda: time.sleep(0.05), "spin": lambda: torch.cuda._sleep(100_000_000),
         "copy": lambda: to.copy_(many), "gemm": lambda: one @ one}
for name, load in loads.items():
    torch.cuda.synchronize()
    time.sleep(2)
    end, recorder = time.time() + 9, None
    with open("%s/%s.csv" % (sys.argv[1], name), "w") as file:
        while time.time() < end:
            if recorder is None and time.time() > end - 6:  # after 3 s
                recorder = subprocess.Popen(
                    ["nvidia-smi", "-i", "0", "-lms", "200", "--format=csv", "--query-gpu=index,"
                     "utilization.gpu,utilization.memory,power.draw,power.limit,clocks.sm"], stdout=file)
            for _ in range(20 if name in ("copy", "gemm") else 1):
                load()
            torch.cuda.synchronize()
        recorder.terminate()
        recorder.wait()
EOF
for load in idle spin copy gemm; do
    for more in "" "--thresholds $out/watts.json"; do
        echo "$load $more:"
        # shellcheck disable=SC2086
        "$weft" bench diagnose "$out/$load.csv" $more | sed -n '2p;4p'
    done
done | tee "$out/diagnose.txt"
