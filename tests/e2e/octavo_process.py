"""A platform in a data directory, driven through the octavo command as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from octavo_cli.supervisor.plan import MARK


@dataclass(frozen=True)
class Octavo:
    """Runs the command in one data directory, on free ports."""

    data_dir: Path

    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        ports = ("OCTAVO_GATEWAY_GRPC_PORT", "OCTAVO_GATEWAY_HTTP_PORT", "OCTAVO_CONSOLE_PORT")
        return {**kept, "OCTAVO_DATA_DIR": str(self.data_dir), **dict.fromkeys(ports, "0")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "octavo_cli", *words]
        return subprocess.Popen(
            command, env=self.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.data_dir
        )

    def run(self, *words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        with self.start(*words) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def ok(self, *words: str, timeout_s: float = 120) -> str:
        done = self.run(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"octavo {' '.join(words)}: {done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def status(self) -> dict:
        return json.loads(self.run("status", "--json").stdout)

    def pids(self, role: str) -> list[int]:
        return [service["pid"] for service in self.status()["services"] if service["role"] == role]

    def processes(self) -> list[psutil.Process]:
        """Everything that lives for this data directory: services by their mark, Postgres by its arguments."""
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get(MARK) == str(self.data_dir) or str(self.data_dir) in process.cmdline()
                if mine or f"{self.data_dir}/pg" in process.cmdline():
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def logs(self) -> str:
        files = sorted((self.data_dir / "logs").glob("*.log"))
        return "\n".join(f"== {file.name}\n" + "\n".join(file.read_text().splitlines()[-8:]) for file in files)
