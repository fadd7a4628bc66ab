"""Fetches the programs that some tests want and pip does not have: a browser, and Prometheus.

    python tools.py DIRECTORY

They are Debian's packages, with what they need that is not here, unpacked into DIRECTORY and not
installed: nobody has to be root, and nothing else on this machine changes. DIRECTORY/bin has the
programs. Without them those tests are skipped, and say so.
"""

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

PACKAGES = ("chromium", "chromium-driver", "prometheus")
PROGRAMS = {
    "chromium": "usr/lib/chromium/chromium",
    "chromedriver": "usr/bin/chromedriver",
    "prometheus": "usr/bin/prometheus",
    "promtool": "usr/bin/promtool",
}
LIBRARIES = ("usr/lib/*-linux-gnu", "lib/*-linux-gnu", "usr/lib/*-linux-gnu/pulseaudio")
TIMEOUT_S = 600.0


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd
    )
    if done.returncode:
        sys.exit(f"tools: {' '.join(command[:3])} ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def needed() -> list[str]:
    """The packages, and those that they need and this machine lacks."""
    plan = run("apt-get", "install", "--simulate", "--no-install-recommends", *PACKAGES)
    return re.findall(r"^Inst (\S+)", plan, re.MULTILINE) or list(PACKAGES)


def wrap(root: Path, directory: Path) -> None:
    """A program is started with the libraries that were unpacked beside it."""
    libraries = [str(found) for pattern in LIBRARIES for found in sorted(root.glob(pattern))]
    directory.mkdir(exist_ok=True)
    for name, inside in PROGRAMS.items():
        if not (root / inside).exists():
            sys.exit(f"tools: there is no {inside} in the packages {', '.join(PACKAGES)}")
        made = directory / name
        made.write_text(
            "#!/bin/sh\n"
            f'export LD_LIBRARY_PATH="{":".join(libraries)}:$LD_LIBRARY_PATH"\n'
            f'exec "{root / inside}" "$@"\n'
        )
        made.chmod(made.stat().st_mode | stat.S_IXUSR)


def main(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        sys.exit(f"tools: no apt-get here: install {', '.join(PACKAGES)} as this system does it")
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    packages = fresh / "packages"
    packages.mkdir(parents=True)
    names = needed()
    print(f"tools: downloading {len(names)} packages", flush=True)
    run("apt-get", "download", *names, cwd=packages)
    for package in sorted(packages.glob("*.deb")):
        run("dpkg-deb", "--extract", str(package), str(fresh))
    shutil.rmtree(packages)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    wrap(target, target / "bin")
    print(f"tools: {', '.join(PROGRAMS)} are in {target / 'bin'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
