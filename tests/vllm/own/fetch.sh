#!/usr/bin/env bash
# vLLM's own HTTP tests, from its source package: tests/vllm/own/fetch.sh FOLDER VLLM
# VLLM is an environment that has vLLM itself. Nothing of it is changed, nothing is built.
set -euo pipefail
folder=$(realpath --canonicalize-missing "${1:?usage: tests/vllm/own/fetch.sh FOLDER VLLM}")
python=$(cd "${2:?usage: tests/vllm/own/fetch.sh FOLDER VLLM}" && pwd)/bin/python
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }

version=$("$python" -c 'from importlib.metadata import version; print(version("vllm").split("+")[0])')
echo "Fetching the tests of vLLM $version into $folder: 40 MB to download; once."
rm -rf "$folder"
mkdir -p "$folder/source" "$folder/build"
# pip asks a source package for its name before it hands it over, which takes what it builds with.
pip install --target "$folder/build" --no-deps setuptools-rust setuptools-scm vcs-versioning semantic-version
PYTHONPATH=$folder/build VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$version \
    pip download --no-deps --no-binary :all: --no-build-isolation --dest "$folder/source" "vllm==$version"
tar --extract --gzip --file "$folder"/source/vllm-*.tar.gz --directory "$folder" --strip-components 1 \
    --wildcards '*/tests/__init__.py' '*/tests/entrypoints/*'
rm -r "$folder/source" "$folder/build"
pip install --target "$folder/packages" --no-deps \
    pytest pytest-asyncio pytest-timeout pluggy iniconfig pygments
cat >"$folder/pytest.ini" <<'INI'
[pytest]
asyncio_mode = strict
asyncio_default_fixture_loop_scope = function
INI
