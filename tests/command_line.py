"""The command line, run within this process."""

from dsocr_analyze.cli import main


def run(capsys, *arguments) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
