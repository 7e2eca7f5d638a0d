"""Look for inputs that a decoder has no answer to: `python -m tests.fuzz [TARGET ...] --seconds N`.

Each target runs under atheris for N seconds, from its seeds and its corpus on. Inputs that reached lines which those
did not are added to the corpus as far as they are small and it has room, and so is every input that is a finding: the
tests run over it from then on. The exit code is 1 if there was any.
"""

import argparse
import hashlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
_INPUT_BYTES_MAX = 4096
_KEPT_BYTES_MAX = 600
_CORPUS_BYTES_MAX = 10 << 10  # of one target
_INPUT_TIMEOUT_S = 10
_MEMORY_MIB_MAX = 1024
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+)")
_RATE = re.compile(r"stat::average_exec_per_sec:\s+(\d+)")
_COUNT = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz the decoders of bytes from peers, and schedules."
    )
    parser.add_argument("targets", metavar="TARGET", nargs="*", help=f"all by default: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    given = parser.parse_args()
    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install atheris; the tests in tests/fuzz run without it", file=sys.stderr)
        return 2
    findings = [fuzz(name, given.seconds) for name in given.targets or TARGETS]
    return 1 if any(findings) else 0


def fuzz(name: str, seconds: int) -> bool:
    """Run one target, print what came of it, and return whether there is a finding."""
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="walproxy-fuzz-") as folder:
        reached, seeds, found = Path(folder, "reached"), Path(folder, "seeds"), Path(folder, "found")
        for each in (reached, seeds, found):
            each.mkdir()
        for seed in TARGETS[name].seeds():
            (seeds / _name_of(seed)).write_bytes(seed)
        command = [
            *(sys.executable, "-m", "tests.fuzz.atheris_loop", name),
            *(f"-max_total_time={seconds}", f"-max_len={_INPUT_BYTES_MAX}", f"-timeout={_INPUT_TIMEOUT_S}"),
            *(f"-rss_limit_mb={_MEMORY_MIB_MAX}", f"-artifact_prefix={found}/", "-print_final_stats=1"),
            *(str(reached), str(seeds), str(corpus)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        findings = [path.read_bytes() for path in found.iterdir()]
        for content in findings:
            (corpus / _name_of(content)).write_bytes(content)
        kept = 0 if findings or TARGETS[name].is_slow else _keep(reached, corpus)
    printed = done.stdout + done.stderr
    count, rate, (lines, features) = _last(_COUNT, printed)[0], _last(_RATE, printed)[0], _last(_PROGRESS, printed, 2)
    print(f"{name}: {count} inputs, {rate}/s, coverage {lines} ({features} features), {kept} added to the corpus")
    if findings or done.returncode:
        print("\n".join(line for line in printed.splitlines() if not line.startswith("#"))[-4000:])
        print(f"{name}: FOUND: {', '.join(map(_name_of, findings)) or 'exit'} in {corpus}")
    sys.stdout.flush()
    return bool(findings or done.returncode)


def _keep(reached: Path, corpus: Path) -> int:
    """Add the smallest inputs that reached something new, as far as there is room; return how many."""
    room = _CORPUS_BYTES_MAX - sum(path.stat().st_size for path in corpus.iterdir())
    kept = 0
    for content in sorted((path.read_bytes() for path in reached.iterdir()), key=len):
        path = corpus / _name_of(content)
        if len(content) > min(room, _KEPT_BYTES_MAX):
            break
        if not path.exists():
            path.write_bytes(content)
            room -= len(content)
            kept += 1
    return kept


def _name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _last(pattern: re.Pattern[str], text: str, groups: int = 1) -> tuple[str, ...]:
    found = list(pattern.finditer(text))
    return found[-1].groups() if found else ("?",) * groups


if __name__ == "__main__":
    sys.exit(main())
