#!/usr/bin/env bash
# Compiles every public header alone: each must bring what it needs.
#
#   headers_alone.sh COMPILER STANDARD INCLUDE_DIR TORCH_INCLUDE_DIRS
#
# STANDARD is 17 or 20. TORCH_INCLUDE_DIRS is a list with semicolons; when it is empty (no libtorch
# on this machine), perdure/torch.h is left out and said so. First shows that a bad header is found.
set -euo pipefail
compiler=$1 standard=$2 include=$3 torch=$4

flags=(-std=c++"$standard" -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror)
torch_flags=()
IFS=';' read -r -a dirs <<<"$torch"
for dir in ${dirs[@]+"${dirs[@]}"}; do
  # The compiler looks there anyway, and named first it hides the standard library's own headers.
  [ "$dir" = /usr/include ] || torch_flags+=(-isystem "$dir")
done

alone() { # HEADER INCLUDE_DIR [FLAG...]
  local header=$1 dir=$2
  shift 2
  printf '#include "%s"\n#include "%s"\n' "$header" "$header" |
    "$compiler" "${flags[@]}" -I "$dir" "$@" -x c++ -
}

bad=$(mktemp -d)
trap 'rm -rf "$bad"' EXIT
printf '#pragma once\ninline std::string Bad() { return {}; }\n' >"$bad/bad.h"
if alone bad.h "$bad" 2>/dev/null; then
  echo "headers_alone: a header without its includes was accepted; this check finds nothing" >&2
  exit 1
fi

failed=0 count=0
for path in "$include"/perdure/*.h; do
  header=perdure/$(basename "$path")
  extra=()
  if [ "$header" = perdure/torch.h ]; then
    if [ ${#torch_flags[@]} -eq 0 ]; then
      echo "headers_alone: no libtorch here: perdure/torch.h left out"
      continue
    fi
    extra=("${torch_flags[@]}")
  fi
  count=$((count + 1))
  alone "$header" "$include" ${extra[@]+"${extra[@]}"} ||
    { echo "headers_alone: $header does not compile alone as C++$standard" >&2; failed=1; }
done
echo "headers_alone: $count headers as C++$standard"
[ "$count" -gt 0 ] && [ "$failed" -eq 0 ]
