#!/usr/bin/env bash
# Fuzzes the parsers of what lies on disk with libFuzzer, AddressSanitizer and UBSan.
#
#   tests/fuzz/run.sh [SECONDS]     each target for so long (default 120)
#
# Builds into build-fuzz with clang. New inputs stay in build-fuzz/corpus; an input that breaks a target
# lies in build-fuzz and fails the run.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-120}
cmake -S . -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
  -DCMAKE_CXX_COMPILER=clang++ -DPERDURE_SANITIZE=address,undefined,fuzzer-no-link -DPERDURE_FUZZER=ON \
  -DPERDURE_WITH_GRPC=OFF -DPERDURE_WITH_TORCH=OFF -DPERDURE_BUILD_BENCH=OFF >/dev/null
targets=(fuzz_manifest fuzz_lineage fuzz_shard_header)
cmake --build build-fuzz --target "${targets[@]}"
failed=0
for target in "${targets[@]}"; do
  mkdir -p "build-fuzz/corpus/$target"
  "build-fuzz/bin/tests/$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
    -artifact_prefix=build-fuzz/ "build-fuzz/corpus/$target" "tests/fuzz/corpus/${target#fuzz_}" \
    2>&1 | tail -n 3 || { echo "fuzz: $target failed"; failed=1; }
done
exit $failed
