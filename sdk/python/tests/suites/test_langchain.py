"""langchain-tests' suite for sandbox backends, all of it."""

import pytest

pytest.importorskip("deepagents")

from langchain_tests.integration_tests import SandboxIntegrationTests  # noqa: E402

from ironcage.langchain import IroncageBackend  # noqa: E402


class TestIroncageBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with IroncageBackend.create() as backend:
            yield backend
