"""What `check` counts: the workloads of a budgets file, here and in a baseline."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.planning import PageRequest
from dsocr_analyze.cli import options, time_options
from dsocr_analyze.cli.counting import Engine
from dsocr_analyze.engine import ENGINES
from dsocr_analyze.errors import ConfigError, TrustError
from dsocr_analyze.gate.budgets import NEW_FILE, PYPROJECT, Budgets, Options, budgets_in
from dsocr_analyze.input_files import SETTINGS_BYTES, is_regular, read_text

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.report.document import Report

__all__ = ["BudgetsFile", "counted_by", "read_budgets"]

_BUDGETS_FILE: Final = "dsocr-budgets.toml"


@dataclass(frozen=True)
class BudgetsFile:
    """A file of budgets, read once.

    Attributes:
        path: Its path.
        text: Its text.
        budgets: The budgets in it.
        names: The files of its folder that budgets are looked for in, in order.
    """

    path: Path
    text: str
    budgets: Budgets
    names: tuple[str, ...]

    @property
    def is_pyproject(self) -> bool:
        """Whether the budgets are a table in a `pyproject.toml`."""
        return self.path.name == PYPROJECT


def read_budgets(named: Path | None, *, is_update: bool) -> BudgetsFile:
    """The budgets from the named file, or from the default file in this folder.

    Args:
        named: The file; None for the default one.
        is_update: Whether budgets are about to be written, so that none need exist.

    Raises:
        ConfigError: There are none, or they are invalid.
    """
    paths = (Path(_BUDGETS_FILE), Path(PYPROJECT)) if named is None else (named,)
    names = tuple(path.name for path in paths)
    for path in paths:
        if is_regular(path) or (path is named and not is_update):
            text = _read(path)
            budgets = budgets_in(text, str(path), is_pyproject=path.name == PYPROJECT)
            if budgets is not None:
                return BudgetsFile(path, text, budgets, names)
            if path is named:
                raise ConfigError(
                    f"{str(path)!r} has no table [tool.dsocr-analyze.check]; add one, such as"
                    ' [tool.dsocr-analyze.check.workloads.gundam] with mode = "gundam"'
                )
    if is_update:
        budgets = budgets_in(NEW_FILE, "new budgets", is_pyproject=False)
        assert budgets is not None, "only a pyproject.toml has none"
        if named is not None and named.name == PYPROJECT:
            raise ConfigError(f"{str(named)!r} does not exist; new budgets go in {_BUDGETS_FILE}")
        return BudgetsFile(paths[0], NEW_FILE, budgets, names)
    raise ConfigError(
        f"no budgets here: neither {_BUDGETS_FILE} nor [tool.dsocr-analyze.check] in {PYPROJECT};"
        " --update creates a file, --budgets FILE names another"
    )


def _read(path: Path) -> str:
    try:
        return read_text(path, SETTINGS_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read budgets {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read budgets {str(path)!r}: {error}") from error


# --- counting --------------------------------------------------------------------------------


def counted_by(
    asked: Options,
    folder: Path,
    *,
    trust_remote_code: bool,
    engine: str = "analytic",
    revision: str | None = None,
) -> Report:
    """The report of a workload.

    Args:
        asked: What is counted.
        folder: The folder its paths are relative to.
        trust_remote_code: Whether a trace may execute a directory's code without a trust record.
        engine: The engine if the workload does not name one.
        revision: The revision the files are from; None for the work tree. Its code is executed
            only if identical files are trusted anywhere.

    Raises:
        AnalyzeError: Something about the workload is invalid; the subclass says what.
    """
    name = asked.engine or ("trace" if asked.stages is not None else engine)
    name = options.chosen("engine", name, ENGINES)
    directory = _directory(asked, folder)
    if revision is not None and name == "trace" and not trust_remote_code:
        _require_trusted_code(directory, str(asked.directory), revision)
        trust_remote_code = True
    page = {each.name: getattr(asked, each.name, None) for each in fields(PageRequest)}
    workload = PageRequest(**page).workload(directory.architecture)
    request = None
    if asked.gpu:
        # No corrections: they are kept per machine, and a check must be the same on every machine.
        request = time_options.time_request(
            asked.gpu, profile=None, runtime=asked.runtime, server=asked.server,
            concurrency=asked.concurrency, preprocess_ms=asked.preprocess_ms,
            workers=asked.workers, price=asked.price, weights_dtype=asked.weights_dtype,
            kv_dtype=asked.kv_dtype, corrections=0,
        )  # fmt: skip
    return Engine(
        name, directory, asked.dtype, asked.use_flash_attn, trust_remote_code=trust_remote_code,
        time=request,
    ).report(workload)  # fmt: skip


def _directory(asked: Options, folder: Path) -> ModelDirectory:
    """The model of a workload; the built-in reference if it names none.

    Never a directory that happens to be in `models`: a check must be the same on every machine.
    """
    unnamed = None if asked.stages is not None else "reference"
    return options.model_directory_from(
        unnamed if asked.directory is None else str(folder / asked.directory), asked.arch,
        _below(folder, asked.config), trust_remote_code=True,
        sliding_window=_number(asked.sliding_window), stages=_below(folder, asked.stages),
        hf_config=_below(folder, asked.hf_config),
    )  # fmt: skip


def _below(folder: Path, path: str | None) -> Path | None:
    return None if path is None else folder / path


def _number(switch: bool | None) -> int | None:
    return None if switch is None else int(switch)


def _require_trusted_code(directory: ModelDirectory, path: str, revision: str) -> None:
    """Raise if files of another revision would be executed without having been trusted."""
    from dsocr_analyze.model.trust import is_trusted_code

    if directory.has_code and not is_trusted_code(directory):
        raise TrustError(
            f"{path!r} of {revision} contains Python code that would be executed"
            f" ({', '.join(directory.sources)}) and is not trusted; read it in a work tree"
            f" (`git worktree add ../baseline {revision}`) and run `dsocr-analyze trust` on it"
            ' there, or count without executing it: engine = "analytic" in the budgets'
        )
