"""What every plan of a page checks: its sides, lengths and counts."""

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import BOUNDS, LARGEST_COUNT, check_count, check_page


def checked_page(page: object, batch_size: int, max_new_tokens: int) -> tuple[int, int]:
    """Width and height in pixels; raises WorkloadError or PageError for a wrong page or count."""
    for name, count in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
        check_count(name, count, *BOUNDS[name])
    if not isinstance(page, tuple | list) or len(page) != 2:
        raise WorkloadError(f"page {page!r} is not a pair; give (width, height) in pixels")
    return check_page(*page)


def prompt_text(text_tokens: int | None, seq_len: int | None, visual: int, default: int) -> int:
    """Tokens besides the visual ones, from either length."""
    if text_tokens is not None:
        check_count("text_tokens", text_tokens, *BOUNDS["text_tokens"])
    if seq_len is None:
        return default if text_tokens is None else text_tokens
    if isinstance(seq_len, bool) or not isinstance(seq_len, int):
        raise WorkloadError(
            f"seq_len {seq_len!r} is not a whole number; give at least {visual + 1}",
            arguments=["seq_len"],
        )
    if seq_len <= visual:
        raise WorkloadError(
            f"seq_len {seq_len} is below the {visual} visual tokens of the page and BOS; "
            f"give at least {visual + 1}",
            arguments=["seq_len"],
        )
    rest = seq_len - visual
    if rest > LARGEST_COUNT:
        raise WorkloadError(
            f"seq_len {seq_len} is too large; give {visual + 1} to {visual + LARGEST_COUNT}",
            arguments=["seq_len"],
        )
    if text_tokens not in (None, rest):
        raise WorkloadError(
            f"seq_len {seq_len} and text_tokens {text_tokens} conflict: the page "
            f"has {visual} visual tokens; give seq_len={visual + (text_tokens or 0)}, "
            f"text_tokens={rest}, or one of the two",
            arguments=["seq_len", "text_tokens"],
        )
    return rest
