"""One target under atheris, until libFuzzer's own options end it: a process of its own, because it never returns.

python -m tests.fuzz.atheris_loop TARGET [options and folders of libFuzzer]
"""

import sys

import atheris

with atheris.instrument_imports(include=["safekeeper", "walproxy"]):
    from tests.fuzz.targets import attempt


def main() -> None:
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: (attempt(name, data), None)[1])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
