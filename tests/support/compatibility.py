"""Versions of packages that the tests run with: the oldest, the newest, and some between."""

from dataclasses import dataclass

PACKAGES = (
    "onnxruntime",
    "onnxruntime-extensions",
    "onnx",
    "numpy",
    "numba",
    "ml-dtypes",
    "platformdirs",
)


NEWEST, NONE = "newest", "none"


@dataclass(frozen=True)
class Row:
    """One environment.

    python    the version of the interpreter
    versions     of PACKAGES, in that order; or NEWEST, or NONE where it has no wheels
    tests        one of SELECTIONS in noxfile.py
    others       versions of other packages; default: the newest of those that the extra `test`
                 requires
    peers        packages that these tests need, in their newest versions
    interpreter  default: the one called pythonVERSION on the PATH
    """

    name: str
    python: str
    versions: str
    tests: str
    others: str = ""
    peers: str = ""
    interpreter: str = ""

    @property
    def pins(self) -> list[str]:
        versions = zip(PACKAGES, self.versions.split(), strict=True)
        return [
            p if v == NEWEST else f"{p}=={v}" for p, v in versions if v != NONE
        ] + f"{self.others} {self.peers}".split()


# The lower bounds in pyproject.toml. Extras that few need, and what builds wheels, have a row that
# runs their tests.
OLDEST = "1.20.0 0.13.0 1.19.0 1.26.0 0.60.0 0.5.0 3.0.0"


OLDEST_TOOLS = (
    "click==8.1.0 hypothesis==6.100.0 mypy==1.10.0 pillow==10.1.0 pytest==8.0.0 "
    "pytest-xdist==3.0.2 rich==13.0.0"
)


OLDEST_EXTRAS = (
    "ray==2.40.0 setuptools==77.0.1 setuptools-scm==8.0.1 torch==2.6.0 onnxscript ziglang==0.13.0 "
    "furo==2025.7.19 myst-parser==5.0.0 sphinx==8.2.3"  # which build the site
)


ROWS = [
    Row("oldest", "3.11", OLDEST, "whole suite", OLDEST_TOOLS),
    Row("oldest extras", "3.11", OLDEST, "extras", f"{OLDEST_TOOLS} {OLDEST_EXTRAS}"),
    Row("2024", "3.11", "1.20.1 0.13.0 1.19.0 2.0.2 0.61.2 0.5.1 4.3.6", "short"),
    Row("2025, spring", "3.12", "1.22.1 0.13.0 1.19.1 2.2.6 0.61.2 0.5.1 4.3.8", "short"),
    Row("2025, autumn", "3.13", "1.23.2 0.15.0 1.20.1 2.3.5 0.62.1 0.5.4 4.5.0", "short"),
    Row("2026", "3.12", "1.27.0 0.15.2 1.22.0 2.4.0 0.65.1 0.5.4 4.5.0", "short"),
    Row("newest", "3.13", "newest newest newest newest newest newest newest", "whole suite"),
    Row(
        "newest peers",
        "3.11",
        "newest newest newest newest newest newest newest",
        "peers",
        peers="onnxscript openvino torch",
    ),
    Row("newest Python", "3.14", "newest none newest newest newest newest newest", "whole suite"),
    Row(
        "Debian 12",
        "3.11.2",
        " ".join([NEWEST] * len(PACKAGES)),
        "sessions",
        interpreter="/usr/bin/python3.11",
    ),
    Row("next Python", "3.15", "none none newest newest newest newest newest", "functions"),
    Row("numba too old", "3.11", OLDEST.replace("0.60.0", "0.59.1"), "import"),
]
