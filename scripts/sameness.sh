#!/usr/bin/env bash
# Sweeps random models of 30 layers in several quantisations with prompts to 600 tokens, with and without --exact, and
# prints what was the same at 1, 2, 4 and 8 sessions. Takes some ten minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
# sweep NAME ARGUMENT…
sweep() {
	local name=$1 document verdict
	shift
	document=$(bin/worker sweep --json --threads 1 "$@" 2>/dev/null) || true # the verdict says it
	verdict=$(grep -o '"corruption_free":[a-z]*,"bit_exact":[a-z]*,"settings_exact":[a-z]*' <<<"$document" | head -n 1)
	printf '%-24s %s\n' "$name" "${verdict:-no report}"
	case $name:$verdict in
	*:*'"corruption_free":false'* | *:) failed=1 ;;
	*f16*) ;; # its bits are reported, not demanded
	*--exact:*'_exact":false'*) failed=1 ;;
	esac
}

for mode in --exact ''; do
	sweep "story ${mode:-default}" $mode
	for weights in q4_0 q8_0 q4_k_m f16; do
		sweep "135m $weights ${mode:-default}" $mode --model "$(scripts/testmodel.sh 135m $weights)" --requests 8 --prompt-tokens 600
	done
done
exit $failed
