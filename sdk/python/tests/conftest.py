"""The suites need the program `ironcage`: IRONCAGE_BINARY, or the one in PATH."""

import os
import shutil
from typing import List

import pytest

from ironcage import Sandbox


def pytest_configure(config: pytest.Config) -> None:
    if not (os.environ.get("IRONCAGE_BINARY") or shutil.which("ironcage")):
        raise pytest.UsageError("no program `ironcage`: set IRONCAGE_BINARY")


#: Without IRONCAGE_TEST_FULL, the large suites run these of their tests.
SMOKE = {
    "test_inspect.py": {
        "test_exec_as_nonexistent_user",
        "test_exec_env_vars",
        "test_exec_input_binary",
        "test_exec_permission_error",
        "test_cwd_relative",
        "test_read_and_write_file_binary",
        "test_read_file_not_allowed",
        "test_read_file_limit",
        "test_write_text_file_is_directory",
    },
    "test_langchain.py": {
        "test_write_new_file",
        "test_download_error_permission_denied",
        "test_download_error_is_directory",
        "test_upload_single_file",
        "test_read_basic_file",
        "test_edit_single_occurrence",
        "test_grep_basic_search",
        "test_glob",
        "test_ls_lists_files",
    },
}


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    if os.environ.get("IRONCAGE_TEST_FULL"):
        return
    left = [item for item in items if item.path.name in SMOKE and item.name not in SMOKE[item.path.name]]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox.create() as sandbox:
        yield sandbox
